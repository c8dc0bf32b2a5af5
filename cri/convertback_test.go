package cri

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coracle-project/coracle/pod/podconfig"
)

func TestConfigsSurviveTheWayBack(t *testing.T) {
	p := convertedPodConfig()
	againPod, err := podConfig(podConfigBack(&p), p.RuntimeHandler)
	if diff := cmp.Diff(p, againPod); diff != "" || err != nil {
		t.Error(err, diff)
	}
	c := convertedContainerConfig()
	againContainer, err := containerConfig(containerConfigBack(&c))
	if diff := cmp.Diff(c, againContainer); diff != "" || err != nil {
		t.Error(err, diff)
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

// Regression: verbose answers showed the names of Go's fields.
func TestInfoHasTheNamesOfCRI(t *testing.T) {
	p, c := aPod(), aContainer()
	for _, i := range []struct {
		info any
		want []string
	}{
		{
			podInfo{Config: podConfigBack(&p.Config)},
			[]string{`"config":{"metadata":{"name":"web","uid":"u1","namespace":"default"`, `"log_directory":`, `"port_mappings":`},
		},
		{(&service{}).containerInfo(c), []string{
			`"config":{"metadata":{"name":"srv","attempt":3}`, `"log_path":"srv/0.log"`,
			`"user_specified_image":`,
		}},
	} {
		text, err := json.Marshal(i.info)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range i.want {
			if !strings.Contains(string(text), want) {
				t.Errorf("no %s in %s", want, text)
			}
		}
	}
}
