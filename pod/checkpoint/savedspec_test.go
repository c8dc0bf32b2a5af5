package checkpoint

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
)

func modestSpec() *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{
			Args: []string{"run"}, Cwd: "/", Env: []string{"A=b"}, NoNewPrivileges: true, ApparmorProfile: "coracle",
			User:         specs.User{UID: 7, GID: 8, AdditionalGids: []uint32{9}},
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_KILL"}, Effective: []string{"CAP_CHOWN"}},
		},
		Linux: &specs.Linux{
			Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}, MaskedPaths: []string{"/proc/a", "/proc/b"},
			ReadonlyPaths: []string{"/proc/c"},
		},
	}
}

// TestSavedHasNoMoreThanAllowed: a checkpoint is refused if it says that its processes have more
// than the new container's configuration gives.
func TestSavedHasNoMoreThanAllowed(t *testing.T) {
	for name, tc := range map[string]struct {
		saved, own func(*specs.Spec)
		config     podconfig.Container
		refused    bool
	}{
		"the same":         {},
		"less":             {saved: func(s *specs.Spec) { s.Process.Capabilities, s.Process.User.AdditionalGids = nil, nil }},
		"in another order": {saved: func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"/proc/b", "/proc/a"} }},
		"unconfined both":  {saved: func(s *specs.Spec) { s.Linux.Seccomp = nil }, own: func(s *specs.Spec) { s.Linux.Seccomp = nil }},
		"only confined before": {
			own: func(s *specs.Spec) { s.Linux.Seccomp, s.Process.NoNewPrivileges = nil, false },
		},
		"bounding":       {saved: func(s *specs.Spec) { s.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"} }, refused: true},
		"effective":      {saved: func(s *specs.Spec) { s.Process.Capabilities.Effective = []string{"CAP_KILL"} }, refused: true},
		"permitted":      {saved: func(s *specs.Spec) { s.Process.Capabilities.Permitted = []string{"CAP_KILL"} }, refused: true},
		"inheritable":    {saved: func(s *specs.Spec) { s.Process.Capabilities.Inheritable = []string{"CAP_KILL"} }, refused: true},
		"ambient":        {saved: func(s *specs.Spec) { s.Process.Capabilities.Ambient = []string{"CAP_KILL"} }, refused: true},
		"none allowed":   {own: func(s *specs.Spec) { s.Process.Capabilities = nil }, refused: true},
		"user":           {saved: func(s *specs.Spec) { s.Process.User.UID = 0 }, refused: true},
		"group":          {saved: func(s *specs.Spec) { s.Process.User.GID = 0 }, refused: true},
		"more groups":    {saved: func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{9, 0} }, refused: true},
		"new privileges": {saved: func(s *specs.Spec) { s.Process.NoNewPrivileges = false }, refused: true},
		"AppArmor":       {saved: func(s *specs.Spec) { s.Process.ApparmorProfile = "unconfined" }, refused: true},
		"SELinux":        {saved: func(s *specs.Spec) { s.Process.SelinuxLabel = "x" }, refused: true},
		"no seccomp":     {saved: func(s *specs.Spec) { s.Linux.Seccomp = nil }, refused: true},
		"other seccomp":  {saved: func(s *specs.Spec) { s.Linux.Seccomp.DefaultAction = specs.ActAllow }, refused: true},
		"less masked":    {saved: func(s *specs.Spec) { s.Linux.MaskedPaths = nil }, refused: true},
		"writable":       {saved: func(s *specs.Spec) { s.Linux.ReadonlyPaths = nil }, refused: true},
		"terminal":       {saved: func(s *specs.Spec) { s.Process.Terminal = true }, refused: true},
		"other command": {config: podconfig.Container{Command: []string{"x"}}, own: func(s *specs.Spec) {
			s.Process.Args = []string{"x"}
		}, refused: true},
		"other directory": {config: podconfig.Container{WorkingDir: "/x"}, own: func(s *specs.Spec) { s.Process.Cwd = "/x" }, refused: true},
		"other variable":  {config: podconfig.Container{Env: [][2]string{{"A", "c"}}}, refused: true},
		"same variable":   {config: podconfig.Container{Env: [][2]string{{"A", "b"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			saved, own := modestSpec(), modestSpec()
			if tc.saved != nil {
				tc.saved(saved)
			}
			if tc.own != nil {
				tc.own(own)
			}
			err := (&Saved{spec: *saved}).Check(&tc.config, own)
			if tc.refused != errors.Is(err, errdefs.ErrInvalid) || !tc.refused && err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSavedGivesNoRights: what a checkpoint says of rights does not reach the new container's spec.
func TestSavedGivesNoRights(t *testing.T) {
	saved, own := modestSpec(), modestSpec()
	saved.Process.Args, saved.Process.Env, saved.Process.Cwd = []string{"other"}, []string{"C=d"}, "/x"
	saved.Process.Capabilities.Effective = []string{"CAP_SYS_ADMIN"}
	saved.Process.User.UID = 0
	saved.Process.NoNewPrivileges = false
	saved.Linux.MaskedPaths = nil
	saved.Hooks = &specs.Hooks{}
	(&Saved{spec: *saved}).Apply(own)
	want := modestSpec()
	want.Process.Args, want.Process.Env, want.Process.Cwd = saved.Process.Args, saved.Process.Env, saved.Process.Cwd
	if !sameJSON(t, own, want) {
		t.Errorf("%+v", own.Process)
	}
}

func sameJSON(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	podtest.OK(t, err)
	y, err := json.Marshal(b)
	podtest.OK(t, err)
	return string(x) == string(y)
}
