package pod

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod/checkpoint"
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

func TestCheckpoint(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	ok(t, m.StartContainer(ctx, id))
	dir := t.TempDir()
	archive := filepath.Join(dir, "saved.tar")
	ok(t, m.Checkpoint(ctx, id, archive, 0))
	files := untar(t, archive)
	var saved checkpoint.Description
	ok(t, json.Unmarshal(files[checkpoint.ConfigName], &saved))
	if saved.ID != id || saved.ImageName != "busybox" || saved.CheckpointedAt.IsZero() {
		t.Errorf("%+v", saved)
	}
	if string(files["checkpoint/pages.img"]) != id || string(files[checkpoint.DiffName]) != "changes of "+id ||
		len(files[checkpoint.SpecName]) == 0 {
		t.Errorf("archive %v", files)
	}
	b.thawed()

	// Nothing is left of one that fails, and the container goes on.
	for _, call := range []string{"shim.Pause", "shim.Checkpoint", "snapshots.Changes"} {
		b.fault(call, failing(errors.New("disk on fire")))
		if err := m.Checkpoint(ctx, id, filepath.Join(dir, "other.tar"), 0); err == nil || !strings.Contains(err.Error(), "disk on fire") {
			t.Errorf("%s: %v", call, err)
		}
		b.repair(call)
		b.thawed()
	}
	// Files that cannot be removed now are removed later.
	mounted := ""
	b.fault("shim.Checkpoint", func(context.Context) error {
		work := must[[]string](t)(filepath.Glob(filepath.Join(dir, ".coracle-checkpoint-*")))
		mounted = work[0]
		ok(t, unix.Mount("busy", mounted, "tmpfs", 0, ""))
		return errors.New("disk on fire")
	})
	if err := m.Checkpoint(ctx, id, filepath.Join(dir, "other.tar"), 0); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("a busy directory: %v", err)
	}
	b.repair("shim.Checkpoint")
	if r := m.containers.Exact(id).Get(); !slices.Contains(r.Saving, mounted) {
		t.Errorf("forgot %s: %v", mounted, r.Saving)
	}
	ok(t, unix.Unmount(mounted, unix.MNT_DETACH))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); len(m.containers.Exact(id).Get().Saving) > 0; <-tick.C {
		if time.Now().After(end) {
			t.Fatal("still saving")
		}
	}
	for name, location := range map[string]string{
		"relative": "x.tar", "with ..": dir + "/../x.tar", "a directory": dir, "in no directory": dir + "/none/x.tar", "empty": "",
	} {
		if err := m.Checkpoint(ctx, id, location, 0); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	left, err := os.ReadDir(dir)
	ok(t, err)
	if len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	t.Setenv("PATH", "/nowhere")
	if err := m.Checkpoint(ctx, id, archive, 0); !errors.Is(err, errdefs.ErrUnsupported) || !strings.Contains(err.Error(), "criu") {
		t.Errorf("without criu: %v", err)
	}
	ok(t, m.Stop(ctx, podID))
	if err := m.Checkpoint(ctx, id, archive, 0); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("of a stopped container: %v", err)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}

func untar(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	f, err := os.Open(archive)
	ok(t, err)
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		ok(t, err)
		files[strings.TrimSuffix(h.Name, "/")] = must[[]byte](t)(io.ReadAll(r))
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

// TestCheckpointPodTwiceAtOnce: of two calls with one directory, the second finds the first one's
// files, and leaves them there.
func TestCheckpointPodTwiceAtOnce(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID, _, ids := savedPodOf(t, b, m)
	dir := t.TempDir()
	errs := make(chan error)
	for range 2 {
		go func() { errs <- m.CheckpointPod(ctx, podID, dir, ids) }()
	}
	one, other := <-errs, <-errs
	if one != nil {
		one, other = other, one
	}
	if one != nil || !errors.Is(other, errdefs.ErrInvalid) {
		t.Errorf("%v, %v", one, other)
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) != 3 {
		t.Errorf("checkpoint of %v", left)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}

func TestCheckpointPod(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID, dir, ids := savedPodOf(t, b, m)
	other := must[string](t)(m.Run(ctx, podConfig("other")))
	another := must[string](t)(m.Create(ctx, other, containerConfig("run")))
	ok(t, m.StartContainer(ctx, another))
	empty := t.TempDir()
	for name, c := range map[string]struct {
		dir  string
		ids  []string
		kind error
	}{
		"no containers":   {empty, nil, errdefs.ErrInvalid},
		"not empty":       {dir, ids, errdefs.ErrInvalid},
		"no directory":    {dir + "/none", ids, errdefs.ErrInvalid},
		"relative":        {"x", ids, errdefs.ErrInvalid},
		"twice":           {empty, []string{ids[0], ids[0]}, errdefs.ErrInvalid},
		"another pod's":   {empty, []string{another}, errdefs.ErrInvalid},
		"no such":         {empty, []string{"no-such"}, errdefs.ErrNotFound},
		"a file":          {dir + "/pod.json", ids, errdefs.ErrInvalid},
		"half another":    {empty, []string{ids[0], another}, errdefs.ErrInvalid},
		"prefix and name": {empty, []string{ids[0], ids[0][:20]}, errdefs.ErrInvalid},
	} {
		if err := m.CheckpointPod(ctx, podID, c.dir, c.ids); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.fault("snapshots.Changes", failing(errors.New("disk on fire")))
	if err := m.CheckpointPod(ctx, podID, empty, ids); err == nil {
		t.Error("no error")
	}
	b.repair("snapshots.Changes")
	b.thawed()
	if left, err := os.ReadDir(empty); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, id := range []string{podID, other} {
		ok(t, m.Remove(ctx, id))
	}
	idle(t, m)
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
	if _, _, err := m.RestorePod(ctx, dir, podConfig("q"), both); !errors.Is(err, errdefs.ErrPrecondition) ||
		!strings.Contains(err.Error(), "runtime.restore") {
		t.Errorf("restoring is off: %v", err)
	}
	m.checkpoints.Restore = true
	other := config("one")
	other.Command = []string{"run", "something else"}
	for name, c := range map[string]struct {
		dir        string
		handler    string
		containers []podconfig.Container
	}{
		"none":            {dir, "", nil},
		"one only":        {dir, "", both[:1]},
		"one twice":       {dir, "", []podconfig.Container{config("one"), config("one")}},
		"unknown":         {dir, "", []podconfig.Container{config("one"), config("three")}},
		"other command":   {dir, "", []podconfig.Container{config("two"), other}},
		"relative":        {"x", "", both},
		"no checkpoint":   {t.TempDir(), "", both},
		"other handler":   {dir, "coracle", both},
		"no such handler": {dir, "none", both},
	} {
		cfg := podConfig("q")
		cfg.RuntimeHandler = c.handler
		if _, _, err := m.RestorePod(ctx, c.dir, cfg, c.containers); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Another image of the same name, and a directory that is elsewhere.
	own := b.images["busybox"]
	other2 := own
	other2.ID = digest.FromString("another busybox")
	b.images["busybox"] = other2
	if _, _, err := m.RestorePod(ctx, dir, podConfig("q"), both); !errors.Is(err, errdefs.ErrInvalid) ||
		!strings.Contains(err.Error(), "is of image") {
		t.Errorf("of another image: %v", err)
	}
	b.images["busybox"] = own
	moved := filepath.Join(t.TempDir(), "0")
	ok(t, os.Rename(filepath.Join(dir, "0"), moved))
	ok(t, os.Symlink(moved, filepath.Join(dir, "0")))
	if _, _, err := m.RestorePod(ctx, dir, podConfig("q"), both); !errors.Is(err, errdefs.ErrInvalid) ||
		!strings.Contains(err.Error(), "not a directory in it") {
		t.Errorf("by way of a link: %v", err)
	}
	ok(t, os.Remove(filepath.Join(dir, "0")))
	ok(t, os.Rename(moved, filepath.Join(dir, "0")))
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
