package spec

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
)

func TestCDIDevices(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	b := &Builder{CDISpecDirs: dirs}
	write := func(name, text string) {
		t.Helper()
		ok(t, os.WriteFile(filepath.Join(dirs[1], name), []byte(text), 0o600))
	}
	write("good.json", `{"cdiVersion": "0.6.0", "kind": "a.example/gpu",
		"devices": [{"name": "0", "containerEdits": {"env": ["GPU=0"], "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null"}]}}],
		"containerEdits": {"mounts": [{"hostPath": "/usr", "containerPath": "/gpu"}]}}`)
	plain := func() *specs.Spec { return &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}} }
	s := plain()
	ok(t, b.InjectCDI(s, []string{"a.example/gpu=0"}))
	if !slices.Contains(s.Process.Env, "GPU=0") {
		t.Errorf("environment %q", s.Process.Env)
	}
	if !slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/gpu" && m.Source == "/usr" }) {
		t.Errorf("mounts %+v", s.Mounts)
	}
	if !slices.ContainsFunc(s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == "/dev/gpu0" }) {
		t.Errorf("devices %+v", s.Linux.Devices)
	}
	// A device that cannot be found is never dropped.
	both := []string{"a.example/gpu=0", "a.example/gpu=1"}
	if err := b.InjectCDI(plain(), both); !errors.Is(err, errdefs.ErrPrecondition) || !strings.Contains(err.Error(), "a.example/gpu=1") {
		t.Errorf("unknown device: %v", err)
	}
	// Nor without a word that its spec cannot be read.
	write("bad.json", "{")
	if err := b.InjectCDI(plain(), both); err == nil || !strings.Contains(err.Error(), "bad.json") {
		t.Errorf("next to a broken spec: %v", err)
	}
}
