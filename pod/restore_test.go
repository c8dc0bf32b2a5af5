package pod

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// withCRIU makes criu(8) be there, as far as its name goes: the shim is a fake.
func withCRIU(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, "criu"), []byte("#!/bin/false\n"), 0o755))
	t.Setenv("PATH", dir)
}

// thawed fails the test if a container was left frozen.
func (b *bench) thawed() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, p := range b.procs {
		if p.paused {
			b.t.Errorf("container %.8s is frozen", id)
		}
	}
}

// savedPodOf makes a pod with two containers and a checkpoint of it.
func savedPodOf(t *testing.T, b *bench, m *Manager) (podID, dir string, ids []string) {
	t.Helper()
	ctx := t.Context()
	podID = must[string](t)(m.Run(ctx, podConfig("p")))
	for _, name := range []string{"one", "two"} {
		c := containerConfig("run", name)
		c.Name = name
		id := must[string](t)(m.Create(ctx, podID, c))
		ok(t, m.StartContainer(ctx, id))
		ids = append(ids, id)
	}
	dir = t.TempDir()
	ok(t, m.CheckpointPod(ctx, podID, dir, ids))
	b.thawed()
	return podID, dir, ids
}

func TestRestorePod(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID, dir, _ := savedPodOf(t, b, m)
	ok(t, m.Remove(ctx, podID))
	config := func(name string) podconfig.Container {
		c := containerConfig("run", name)
		c.Name = name
		return c
	}
	both := []podconfig.Container{config("two"), config("one")}
	if _, _, err := m.RestorePod(ctx, dir, podConfig("q"), both); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("restoring is off: %v", err)
	}
	m.checkpoints.Restore = true
	handled := podConfig("q")
	handled.RuntimeHandler = "none"
	if _, _, err := m.RestorePod(ctx, dir, handled, both); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no such handler: %v", err)
	}
	// What is found out after the pod was made: it goes again.
	other := config("one")
	other.Command = []string{"run", "something else"}
	if _, _, err := m.RestorePod(ctx, dir, podConfig("q"), []podconfig.Container{config("two"), other}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("other command: %v", err)
	}
	own := b.images["busybox"]
	other2 := own
	other2.ID = digest.FromString("another busybox")
	b.images["busybox"] = other2
	if _, _, err := m.RestorePod(ctx, dir, podConfig("q"), both); !errors.Is(err, errdefs.ErrInvalid) ||
		!strings.Contains(err.Error(), "is of image") {
		t.Errorf("of another image: %v", err)
	}
	b.images["busybox"] = own
	idle(t, m)
	b.nothingLeft()

	podID, restored, err := m.RestorePod(ctx, dir, podConfig("q"), both)
	ok(t, err)
	if len(restored) != 2 || restored[0].Name != "two" || restored[1].Name != "one" {
		t.Fatalf("%+v", restored)
	}
	if len(b.procs) != 0 {
		t.Error("something runs before it is started")
	}
	id := restored[1].ID
	if c := must[state.Container](t)(m.Container(id)); c.State != state.Created {
		t.Errorf("restored container is %s", c.State)
	}
	if layers := b.layers[id]; len(layers) != 1 {
		t.Errorf("root of layers %v, want what was written on top", layers)
	}
	// The images are looked at again before they are used.
	images := filepath.Join(dir, "0", "checkpoint")
	ok(t, os.Symlink("/etc/shadow", images+"/late.img"))
	if err := m.StartContainer(ctx, id); !errors.Is(err, errdefs.ErrInvalid) || len(b.procs) != 0 {
		t.Errorf("start from images that were changed: %v", err)
	}
	ok(t, os.Remove(images+"/late.img"))
	// A restart in between changes nothing.
	ok(t, m.Close())
	m, _ = b.manager()
	ok(t, m.StartContainer(ctx, id))
	if got := b.hostnames[filepath.Join(m.dirs.NamespacesOf(podID), "uts")]; got != "host-q" {
		t.Errorf("the pod's name is %q", got)
	}
	if got := b.proc(id).checkpoint; got != filepath.Join(dir, "0", "checkpoint") {
		t.Errorf("started from %q", got)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

// TestCheckpointImage: a container of an image that is a checkpoint goes on from there, if
// the operator lets it.
func TestCheckpointImage(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID, dir, _ := savedPodOf(t, b, m)
	ok(t, m.Remove(ctx, podID))
	layer := []digest.Digest{digest.FromString("checkpoint")}
	b.images["saved"] = image.Image{ID: digest.FromString("saved"), Layers: layer}
	b.contents[layersKey(layer)] = os.DirFS(filepath.Join(dir, "0"))
	plain := []digest.Digest{digest.FromString("plain")}
	b.images["plain"] = image.Image{ID: digest.FromString("plain"), Layers: plain}
	b.contents[layersKey(plain)] = fstest.MapFS{"file": {}}

	podID = must[string](t)(m.Run(ctx, podConfig("q")))
	c := podconfig.Container{Name: "one", Image: "saved"}
	if _, err := m.Create(ctx, podID, c); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("restoring is off: %v", err)
	}
	m.checkpoints.Restore, m.checkpoints.RestoreBases = true, []string{"busybox@*"}
	m.checkpoints.RestoreBases = nil
	if _, err := m.Create(ctx, podID, c); !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "runtime.restore_bases") {
		t.Errorf("of an image that the operator does not list: %v", err)
	}
	m.checkpoints.RestoreBases = []string{"busybox@*"}
	id := must[string](t)(m.Create(ctx, podID, c))
	spec := b.bundle(id)
	if !slices.Equal(spec.Process.Args, []string{"run", "one"}) {
		t.Errorf("process %q", spec.Process.Args)
	}
	ok(t, m.StartContainer(ctx, id))
	if got := b.proc(id).checkpoint; got != filepath.Join(b.state, "containers", id, "checkpoint", "checkpoint") {
		t.Errorf("started from %q", got)
	}
	// An ordinary image of one layer is no checkpoint.
	c = containerConfig("run")
	c.Image = "plain"
	must[string](t)(m.Create(ctx, podID, c))
	// The image of the saved container has to be there.
	delete(b.images, "busybox")
	c = podconfig.Container{Name: "late", Image: "saved"}
	if _, err := m.Create(ctx, podID, c); !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "busybox") {
		t.Errorf("without the image: %v", err)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

// checkpointImage makes an image of a saved container, whose files change may spoil.
func checkpointImage(t *testing.T, b *bench, m *Manager, change func(dir string)) {
	t.Helper()
	podID, dir, _ := savedPodOf(t, b, m)
	ok(t, m.Remove(t.Context(), podID))
	dir = filepath.Join(dir, "0")
	change(dir)
	layer := []digest.Digest{digest.FromString("checkpoint")}
	b.images["saved"] = image.Image{ID: digest.FromString("saved"), Layers: layer}
	b.contents[layersKey(layer)] = os.DirFS(dir)
}

// rewrite changes one of a checkpoint's JSON files.
func rewrite[T any](t *testing.T, path string, change func(*T)) {
	t.Helper()
	var v T
	ok(t, json.Unmarshal(must[[]byte](t)(os.ReadFile(path)), &v))
	change(&v)
	ok(t, os.WriteFile(path, must[[]byte](t)(json.Marshal(v)), 0o600))
}

// TestCheckpointBringsNothingAlong: of what a checkpoint says and has, nothing but processes,
// memory and files becomes the container's: no devices by annotations (CVE-2026-53492), labels
// (CVE-2026-53488), mounts or hooks, and no log (CVE-2026-53489).
func TestCheckpointBringsNothingAlong(t *testing.T) {
	withCRIU(t)
	made := func(spoil func(t *testing.T, dir string)) (spec specs.Spec, log string) {
		b := newBench(t)
		m, _ := b.manager()
		ctx := t.Context()
		checkpointImage(t, b, m, func(dir string) { spoil(t, dir) })
		m.checkpoints.Restore, m.checkpoints.RestoreBases = true, []string{"busybox@*"}
		pc := podConfig("q")
		pc.LogDirectory = t.TempDir()
		podID := must[string](t)(m.Run(ctx, pc))
		id := must[string](t)(m.Create(ctx, podID, podconfig.Container{Name: "one", Image: "saved", LogPath: "one/0.log"}))
		ok(t, m.StartContainer(ctx, id))
		spec = *b.bundle(id)
		text := strings.NewReplacer(podID, "POD", id, "CONTAINER", b.state, "STATE").Replace(string(must[[]byte](t)(json.Marshal(spec))))
		spec = specs.Spec{}
		ok(t, json.Unmarshal([]byte(text), &spec))
		if entries := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(pc.LogDirectory, "one"))); len(entries) > 0 {
			log = entries[0].Name()
		}
		ok(t, m.Remove(ctx, podID))
		idle(t, m)
		b.nothingLeft()
		return spec, log
	}
	plain, _ := made(func(*testing.T, string) {})
	device := specs.LinuxDevice{Path: "/dev/mem", Type: "c", Major: 1, Minor: 1}
	mount := specs.Mount{Destination: "/host", Source: "/", Type: "bind", Options: []string{"rbind"}}
	hostile, log := made(func(t *testing.T, dir string) {
		rewrite(t, filepath.Join(dir, "spec.dump"), func(s *specs.Spec) {
			s.Annotations = maps.Clone(untrusted)
			s.Linux.Devices = append(s.Linux.Devices, device)
			s.Linux.Namespaces = nil
			s.Linux.CgroupsPath = "/elsewhere"
			s.Mounts = append(s.Mounts, mount)
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh"}}}
			s.Root = &specs.Root{Path: "/"}
			// What a container may take along, so that the test knows that the file was read.
			s.Process.Env = append(s.Process.Env, "FROM=checkpoint")
		})
		rewrite(t, filepath.Join(dir, "config.dump"), func(c *map[string]any) {
			(*c)["labels"], (*c)["annotations"] = untrusted, untrusted
			(*c)["logPath"] = "/etc/shadow"
		})
		for _, name := range []string{"container.log", "log", "0.log", "status"} {
			ok(t, os.Symlink("/etc/shadow", filepath.Join(dir, name)))
		}
	})
	if !slices.Contains(hostile.Process.Env, "FROM=checkpoint") {
		t.Errorf("control: the checkpoint was not read: %q", hostile.Process.Env)
	}
	hostile.Process.Env = slices.DeleteFunc(hostile.Process.Env, func(v string) bool { return v == "FROM=checkpoint" })
	if !sameJSON(t, plain, hostile) {
		t.Errorf("plain:\n%s\nhostile:\n%s", must[[]byte](t)(json.Marshal(plain)), must[[]byte](t)(json.Marshal(hostile)))
	}
	if log != "" {
		t.Errorf("log %q came along", log)
	}
}

func sameJSON(t *testing.T, a, b any) bool {
	t.Helper()
	return string(must[[]byte](t)(json.Marshal(a))) == string(must[[]byte](t)(json.Marshal(b)))
}

// A second restore of the same pod, as of a caller that lost the first answer, leaves the pod
// as it is.
func TestRestorePodThatThereIs(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID, dir, ids := savedPodOf(t, b, m)
	m.checkpoints.Restore = true
	var both []podconfig.Container
	for _, name := range []string{"one", "two"} {
		c := containerConfig("run", name)
		c.Name = name
		both = append(both, c)
	}
	if _, _, err := m.RestorePod(ctx, dir, podConfig("p"), both); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("restore of a pod that runs: %v, want ErrExists", err)
	}
	if p, err := m.Pod(podID); err != nil || p.State != state.Ready {
		t.Errorf("the pod that was there: %+v, %v; want Ready", p, err)
	}
	for _, id := range ids {
		if c, err := m.Container(id); err != nil || c.State != state.Running {
			t.Errorf("container %.8s: %+v, %v; want Running", id, c, err)
		}
	}
}
