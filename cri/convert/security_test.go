package convert

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/pod/podconfig"
)

func TestAppArmorForms(t *testing.T) {
	type profile = runtimeapi.SecurityProfile
	for _, tt := range []struct {
		p    *profile
		old  string
		want string
	}{
		{nil, "", ""},
		{nil, "runtime/default", "runtime/default"},
		{nil, "localhost/x", "localhost/x"},
		{&profile{}, "unconfined", "runtime/default"},
		{&profile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, "", "unconfined"},
		{&profile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "localhost/x"}, "", "localhost/x"},
	} {
		if got, err := apparmor("f", tt.p, tt.old); err != nil || got != tt.want {
			t.Errorf("%v, %q: %q, %v", tt.p, tt.old, got, err)
		}
	}
}

func TestOldSeccompForms(t *testing.T) {
	for old, want := range map[string]podconfig.Seccomp{
		"":                {Type: podconfig.ProfileUnconfined},
		"unconfined":      {Type: podconfig.ProfileUnconfined},
		"runtime/default": {Type: podconfig.ProfileRuntimeDefault},
		"docker/default":  {Type: podconfig.ProfileRuntimeDefault},
		"localhost//p":    {Type: podconfig.ProfileLocalhost, Localhost: "/p"},
	} {
		if got, err := seccomp("f", nil, old); err != nil || got != want {
			t.Errorf("%q: %+v, %v", old, got, err)
		}
	}
}

func TestProfilesSurviveTheWayBack(t *testing.T) {
	for _, s := range []podconfig.Seccomp{
		{Type: podconfig.ProfileUnconfined},
		{Type: podconfig.ProfileRuntimeDefault},
		{Type: podconfig.ProfileLocalhost, Localhost: "/p"},
	} {
		if got, err := seccomp("f", seccompBack(s), ""); got != s || err != nil {
			t.Errorf("%+v: %+v, %v", s, got, err)
		}
	}
	for _, a := range []string{"", "runtime/default", "unconfined", "localhost/p"} {
		if got, err := apparmor("f", apparmorBack(a), ""); got != a || err != nil {
			t.Errorf("%q: %q, %v", a, got, err)
		}
	}
}
