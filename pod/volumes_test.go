package pod

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// bundle reads the spec of a container.
func (b *bench) bundle(id string) *specs.Spec {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.state, "containers", id, "config.json"))
	if err != nil {
		b.t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		b.t.Fatal(err)
	}
	return &spec
}

// mountAt is the spec's mount at a path.
func mountAt(t *testing.T, spec *specs.Spec, path string) specs.Mount {
	t.Helper()
	i := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == path })
	if i < 0 {
		t.Fatalf("nothing is mounted at %s", path)
	}
	return spec.Mounts[i]
}

func TestImageVolumes(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	c := containerConfig("run")
	c.Mounts = []podconfig.Mount{
		{ContainerPath: "/whole", Image: "busybox"},
		{ContainerPath: "/part", Image: "busybox", ImageSubPath: "etc", Options: []string{"noexec"}},
	}
	id := must[string](t)(m.Create(ctx, podID, c))
	spec := b.bundle(id)
	dir := filepath.Join(b.state, "containers", id, "volumes")
	if got := mountAt(t, spec, "/whole"); got.Source != filepath.Join(dir, "0") || !slices.Contains(got.Options, "ro") {
		t.Errorf("%+v", got)
	}
	if got := mountAt(t, spec, "/part"); got.Source != filepath.Join(dir, "1", "etc") || !slices.Contains(got.Options, "noexec") {
		t.Errorf("%+v", got)
	}
	if got := must[state.Container](t)(m.Container(id)).VolumeRefs; got["/whole"] != "busybox@sha256:1" || len(got) != 2 {
		t.Errorf("references %v", got)
	}

	// They are the container's after a restart, too.
	ok(t, m.Close())
	m, _ = b.manager()
	if n := len(b.snapshots); n != 3 {
		t.Errorf("%d snapshots after a restart, want the root's and two", n)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

func TestVolumesOfAFailedCreateGo(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	c := containerConfig("run")
	c.Mounts = []podconfig.Mount{{ContainerPath: "/a", Image: "busybox"}, {ContainerPath: "/b", Image: "none"}}
	if _, err := m.Create(ctx, podID, c); !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "/b") {
		t.Errorf("%v", err)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

func TestMountOptionsAndIDs(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	c := containerConfig("run")
	maps := []podconfig.IDMap{{Container: 0, Host: 100000, Length: 65536}}
	c.Mounts = []podconfig.Mount{{
		ContainerPath: "/d", HostPath: t.TempDir(), Users: podconfig.IDMaps{UIDs: maps, GIDs: maps},
		Options: []string{"nodev", "nosuid"},
	}}
	got := mountAt(t, b.bundle(must[string](t)(m.Create(ctx, podID, c))), "/d")
	want := specs.LinuxIDMapping{ContainerID: 0, HostID: 100000, Size: 65536}
	if !slices.Contains(got.Options, "nodev") || !slices.Contains(got.Options, "nosuid") ||
		len(got.UIDMappings) != 1 || got.UIDMappings[0] != want || len(got.GIDMappings) != 1 {
		t.Errorf("%+v", got)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}

// CDI devices reach the specification that Create writes.
func TestCDIDeviceOfAContainer(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	m, _ := b.manager(func(o *Options, _ *Deps) { o.CDISpecDirs = []string{dir} })
	ok(t, os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(`{"cdiVersion": "0.6.0", "kind": "a.example/gpu",
		"devices": [{"name": "0", "containerEdits": {"env": ["GPU=0"]}}]}`), 0o600))
	podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
	c := containerConfig("run")
	c.CDIDevices = []string{"a.example/gpu=0"}
	if spec := b.bundle(must[string](t)(m.Create(t.Context(), podID, c))); !slices.Contains(spec.Process.Env, "GPU=0") {
		t.Errorf("environment %q", spec.Process.Env)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}
