package mac

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/apparmor"
	"github.com/coracle-project/coracle/pod/errdefs"
)

func TestChooseAppArmor(t *testing.T) {
	off := apparmor.Profiles(nil)
	bare := apparmor.Profiles{"mine": true}
	full := apparmor.Profiles{"mine": true, apparmor.Default: true}
	broken := errors.New("syntax error")
	for name, tc := range map[string]struct {
		want       string
		privileged bool
		loaded     apparmor.Profiles
		load       error // what loading the default profile fails with
		loads      bool  // it is tried
		profile    string
		err        string
		kind       error
	}{
		"nothing asked, no AppArmor": {want: "", loaded: off},
		"default asked, no AppArmor": {want: "runtime/default", loaded: off, err: "this host has no AppArmor", kind: errdefs.ErrInvalid},
		"default asked, privileged, off": {
			want: "runtime/default", privileged: true, loaded: off, err: "this host has no AppArmor",
			kind: errdefs.ErrInvalid,
		},
		"unconfined, no AppArmor":   {want: "unconfined", loaded: off},
		"local, no AppArmor":        {want: "localhost/mine", loaded: off, err: "this host has no AppArmor", kind: errdefs.ErrInvalid},
		"nothing asked":             {want: "", loaded: full, profile: apparmor.Default},
		"default":                   {want: "runtime/default", loaded: full, profile: apparmor.Default},
		"nothing asked, not loaded": {want: "", loaded: bare, loads: true, profile: apparmor.Default},
		"default, not loaded":       {want: "runtime/default", loaded: bare, loads: true, profile: apparmor.Default},
		"default, nothing to load by": {
			want: "runtime/default", loaded: bare, loads: true, load: apparmor.ErrNoParser,
			err: "runtime/default: ", kind: errdefs.ErrUnavailable,
		},
		"nothing asked, nothing to load": {want: "", loaded: bare, loads: true, load: apparmor.ErrNoParser},
		"nothing asked, does not load":   {want: "", loaded: bare, loads: true, load: broken},
		"default, does not load": {
			want: "runtime/default", loaded: bare, loads: true, load: broken, err: "runtime/default: syntax error",
			kind: errdefs.ErrUnavailable,
		},
		"default, privileged":            {want: "runtime/default", privileged: true, loaded: bare},
		"unconfined":                     {want: "unconfined", loaded: full},
		"local":                          {want: "localhost/mine", loaded: full, profile: "mine"},
		"local, privileged":              {want: "localhost/mine", privileged: true, loaded: full, profile: "mine"},
		"local, not loaded":              {want: "localhost/min", loaded: full, err: "is not loaded on this host", kind: errdefs.ErrInvalid},
		"local without a name":           {want: "localhost/", loaded: full, err: "is not runtime/default", kind: errdefs.ErrInvalid},
		"a name without what it is from": {want: "mine", loaded: full, err: "is not runtime/default", kind: errdefs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			loads := false
			host := hostProfiles{loaded: tc.loaded, log: slog.New(slog.DiscardHandler), load: func(context.Context) error {
				loads = true
				return tc.load
			}}
			got, err := host.choose(t.Context(), tc.want, tc.privileged)
			if got != tc.profile || loads != tc.loads {
				t.Errorf("profile %q, loaded: %t", got, loads)
			}
			if tc.err == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error is %v", err)
			}
		})
	}
}
