package checkpoint

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/snapshot"
)

// node is a node whose containers are saved: a double of criu(8), the shim, the images and the root
// file systems.
type node struct {
	*podtest.Node
	t      *testing.T
	store  *Store
	images map[string]image.Image

	mu     sync.Mutex
	calls  []string                // in order; "Pause ID", "Checkpoint ID"…
	frozen map[string]bool         // by id of container
	faults map[string]func() error // what comes before a call, by its name
}

func newNode(t *testing.T) *node {
	t.Helper()
	criu := t.TempDir()
	podtest.OK(t, os.WriteFile(filepath.Join(criu, "criu"), []byte("#!/bin/false\n"), 0o755))
	t.Setenv("PATH", criu)
	n := &node{
		Node: podtest.NewNode(t), t: t, images: map[string]image.Image{}, frozen: map[string]bool{}, faults: map[string]func() error{},
	}
	n.store = New(Config{
		Pods: n.Pods, Containers: n.Containers, Dirs: n.Dirs, Shim: n, Images: n, Snapshots: n, Life: n.Life, Clean: n.Clean, Log: n.Log,
		FaultAt: func(context.Context, fault.Point) error { return nil },
	})
	return n
}

// running adds a running container to a pod.
func (n *node) running(p *state.PodEntry, name string) *state.ContainerEntry {
	n.t.Helper()
	return n.Container(p, func(r *state.ContainerRecord) { r.Config.Name, r.Config.Image = name, "busybox" })
}

// do is the frame of every call: the fault of the test, then the deed, under the lock.
func (n *node) do(call, id string, deed func() error) error {
	n.mu.Lock()
	f := n.faults[call]
	n.mu.Unlock()
	if f != nil {
		if err := f(); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call+" "+id)
	return deed()
}

func (n *node) fault(call string, f func() error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[call] = f
}

func (n *node) repair(call string) { n.fault(call, nil) }

func (n *node) Pause(_ context.Context, _, id string) error {
	return n.do("Pause", id, func() error {
		n.frozen[id] = true
		return nil
	})
}

func (n *node) Resume(_ context.Context, _, id string) error {
	return n.do("Resume", id, func() error {
		n.frozen[id] = false
		return nil
	})
}

func (n *node) Checkpoint(_ context.Context, _, id, dir string) error {
	return n.do("Checkpoint", id, func() error {
		if !n.frozen[id] {
			return fmt.Errorf("container %s is saved while it goes on", id)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "pages.img"), []byte(id), 0o600)
	})
}

func (n *node) Get(ref string) (image.Image, error) {
	img, known := n.images[ref]
	if !known {
		return img, image.ErrNotFound
	}
	return img, nil
}

func (*node) Prepare(context.Context, string, snapshot.PrepareOptions) (snapshot.Snapshot, error) {
	return snapshot.Snapshot{}, errors.New("nothing is to be mounted")
}

func (*node) Remove(context.Context, string) error { return errors.New("nothing is to be removed") }

func (n *node) Changes(_ context.Context, id string, to io.Writer) error {
	return n.do("Changes", id, func() error {
		_, err := io.WriteString(to, "changes of "+id)
		return err
	})
}

func (*node) AddLayer(context.Context, string, io.ReadSeeker) (digest.Digest, func(context.Context) error, error) {
	return "", nil, errors.New("nothing is to be unpacked")
}

// thawed fails the test if a container was left frozen, or its record says so.
func (n *node) thawed() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, frozen := range n.frozen {
		if frozen {
			n.t.Errorf("container %.8s is frozen", id)
		}
	}
	for _, e := range n.Containers.Each(func(r *state.ContainerRecord) bool { return r.Frozen }) {
		n.t.Errorf("the record of container %.8s says that it is frozen", e.ID)
	}
}

func failing(err error) func() error { return func() error { return err } }

func entries(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	return podtest.Must[[]os.DirEntry](t)(os.ReadDir(dir))
}

func TestCheckpoint(t *testing.T) {
	n := newNode(t)
	ctx, c := t.Context(), n.store
	p := n.Pod()
	e := n.running(p, "one")
	dir := t.TempDir()
	archive := filepath.Join(dir, "saved.tar")
	podtest.OK(t, c.Container(ctx, e.ID[:8], archive, 0))
	files := untar(t, archive)
	var saved Description
	podtest.OK(t, json.Unmarshal(files[ConfigName], &saved))
	if saved.ID != e.ID || saved.ImageName != "busybox" || saved.CheckpointedAt.IsZero() {
		t.Errorf("%+v", saved)
	}
	if string(files["checkpoint/pages.img"]) != e.ID || string(files[DiffName]) != "changes of "+e.ID || len(files[SpecName]) == 0 {
		t.Errorf("archive %v", files)
	}
	n.thawed()

	// Nothing is left of one that fails, and the container goes on.
	for _, call := range []string{"Pause", "Checkpoint", "Changes"} {
		n.fault(call, failing(errors.New("disk on fire")))
		if err := c.Container(ctx, e.ID, filepath.Join(dir, "other.tar"), 0); err == nil || !strings.Contains(err.Error(), "disk on fire") {
			t.Errorf("%s: %v", call, err)
		}
		n.repair(call)
		n.thawed()
	}
	for name, location := range map[string]string{
		"relative": "x.tar", "with ..": dir + "/../x.tar", "a directory": dir, "in no directory": dir + "/none/x.tar", "empty": "",
	} {
		if err := c.Container(ctx, e.ID, location, 0); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := entries(t, dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	if saving := e.Get().Saving; len(saving) != 0 {
		t.Errorf("still saving %v", saving)
	}
	t.Setenv("PATH", "/nowhere")
	if err := c.Container(ctx, e.ID, archive, 0); !errors.Is(err, errdefs.ErrUnsupported) || !strings.Contains(err.Error(), "criu") {
		t.Errorf("without criu: %v", err)
	}
	exited := n.Container(p, podtest.In(state.ContainerExited))
	if err := c.Container(ctx, exited.ID, archive, 0); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("of a stopped container: %v", err)
	}
}

// TestContainerThatCannotBeThawedNow is thawed later.
func TestContainerThatCannotBeThawedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		e := n.running(n.Pod(), "one")
		n.fault("Resume", failing(errors.New("the shim hangs")))
		err := n.store.Container(t.Context(), e.ID, filepath.Join(t.TempDir(), "saved.tar"), 0)
		if err == nil || !strings.Contains(err.Error(), "the shim hangs") {
			t.Errorf("not thawed: %v", err)
		}
		if !e.Get().Frozen {
			t.Error("it was thawed at once")
		}
		n.repair("Resume")
		time.Sleep(time.Minute) // of the bubble
		synctest.Wait()
		n.thawed()
	})
}

// TestFilesThatCannotBeRemovedNow are removed later, and noted until then.
func TestFilesThatCannotBeRemovedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		e := n.running(n.Pod(), "one")
		dir := t.TempDir()
		mounted := ""
		n.fault("Checkpoint", func() error {
			work := podtest.Must[[]string](t)(filepath.Glob(filepath.Join(dir, ".coracle-checkpoint-*")))
			mounted = work[0]
			podtest.OK(t, unix.Mount("busy", mounted, "tmpfs", 0, ""))
			return errors.New("disk on fire")
		})
		err := n.store.Container(t.Context(), e.ID, filepath.Join(dir, "saved.tar"), 0)
		if err == nil || !strings.Contains(err.Error(), "disk on fire") {
			t.Errorf("a busy directory: %v", err)
		}
		if saving := e.Get().Saving; !slices.Contains(saving, mounted) {
			t.Errorf("forgot %s: %v", mounted, saving)
		}
		podtest.OK(t, unix.Unmount(mounted, unix.MNT_DETACH))
		time.Sleep(time.Minute) // of the bubble
		synctest.Wait()
		if saving := e.Get().Saving; len(saving) != 0 {
			t.Errorf("still saving %v", saving)
		}
		if left := entries(t, dir); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func untar(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	f, err := os.Open(archive)
	podtest.OK(t, err)
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		podtest.OK(t, err)
		files[strings.TrimSuffix(h.Name, "/")] = podtest.Must[[]byte](t)(io.ReadAll(r))
	}
}

// TestCheckpointPodTwiceAtOnce: of two calls with one directory, the second finds the first one's
// files, and leaves them there.
func TestCheckpointPodTwiceAtOnce(t *testing.T) {
	n := newNode(t)
	p := n.Pod()
	ids := []string{n.running(p, "one").ID, n.running(p, "two").ID}
	dir := t.TempDir()
	errs := make(chan error)
	for range 2 {
		go func() { errs <- n.store.Pod(t.Context(), p.ID, dir, ids) }()
	}
	one, other := <-errs, <-errs
	if one != nil {
		one, other = other, one
	}
	if one != nil || !errors.Is(other, errdefs.ErrInvalid) {
		t.Errorf("%v, %v", one, other)
	}
	if left := entries(t, dir); len(left) != 3 {
		t.Errorf("checkpoint of %v", left)
	}
	n.thawed()
}

func TestCheckpointPod(t *testing.T) {
	n := newNode(t)
	ctx, c := t.Context(), n.store
	p, other := n.Pod(), n.Pod()
	ids := []string{n.running(p, "one").ID, n.running(p, "two").ID}
	another := n.running(other, "another").ID
	dir, empty := t.TempDir(), t.TempDir()
	podtest.OK(t, c.Pod(ctx, p.ID, dir, ids))
	n.thawed()
	// All are frozen before the first is saved, and until the last is.
	verbs := ""
	for _, call := range n.calls {
		verbs += call[:1]
	}
	if verbs != "PPCCCCRR" { // Checkpoint and Changes of both
		t.Errorf("calls of the shim and the snapshots: %q", n.calls)
	}
	for name, tc := range map[string]struct {
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
		if err := c.Pod(ctx, p.ID, tc.dir, tc.ids); !errors.Is(err, tc.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.fault("Changes", failing(errors.New("disk on fire")))
	if err := c.Pod(ctx, p.ID, empty, ids); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("no error: %v", err)
	}
	n.repair("Changes")
	n.thawed()
	if left := entries(t, empty); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	for _, id := range ids {
		if saving := n.Containers.Exact(id).Get().Saving; len(saving) != 0 {
			t.Errorf("container %.8s is still saving %v", id, saving)
		}
	}
}

// TestCheckpointMayNotNameAnyImage: who makes a pod of a checkpoint image, or the image, does not
// get at other images of the node, which may have been pulled with someone else's credentials.
func TestCheckpointMayNotNameAnyImage(t *testing.T) {
	private := image.Image{
		ID: digest.FromString("private"), RepoTags: []string{"secret.example/app:1"},
		RepoDigests: []string{"secret.example/app@sha256:2"}, Layers: []digest.Digest{digest.FromString("secrets")},
	}
	for name, claim := range map[string]Description{
		"by its id":     {ImageID: private.ID.String()},
		"by its digest": {ImageRef: "secret.example/app@sha256:2"},
		"by its name":   {ImageName: "secret.example/app:1"},
		"by its id, with the name of an allowed one": {
			ImageID: private.ID.String(), ImageRef: "public.example/a", ImageName: "public.example/a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			saved := &Saved{config: claim}
			for _, ref := range []string{private.ID.String(), private.RepoTags[0], private.RepoDigests[0]} {
				n.images[ref] = private
			}
			here := maps.Clone(n.images)
			n.store.RestoreBases = []string{"public.example/*", "busybox@*"}
			_, refused := n.store.Base(saved, image.Image{}, "")
			if !errors.Is(refused, errdefs.ErrNotFound) || !strings.Contains(refused.Error(), "runtime.restore_bases") {
				t.Errorf("%v, want a refusal", refused)
			}
			// It is not even told whether the image is here.
			clear(n.images)
			if _, err := n.store.Base(saved, image.Image{}, ""); err == nil || err.Error() != refused.Error() {
				t.Errorf("an image that is here: %v\none that is not: %v", refused, err)
			}
			n.images = here
			// The attack wins where the operator lets checkpoints name that image.
			n.store.RestoreBases = []string{"secret.example/*"}
			got, err := n.store.Base(saved, image.Image{}, "")
			if err != nil || !slices.Equal(got.Layers, private.Layers) {
				t.Errorf("control: layers %v, %v", got.Layers, err)
			}
		})
	}
}

// TestOpenPod: a pod's checkpoint is refused unless it is whole, of this version and handler, and
// of just the containers that are wanted.
func TestOpenPod(t *testing.T) {
	n := newNode(t)
	p := n.Pod()
	dir := t.TempDir()
	podtest.OK(t, n.store.Pod(t.Context(), p.ID, dir, []string{n.running(p, "one").ID, n.running(p, "two").ID}))
	named := func(names ...string) (cs []podconfig.Container) {
		for _, name := range names {
			cs = append(cs, podconfig.Container{Name: name})
		}
		return cs
	}
	both := named("two", "one")
	if _, err := n.store.OpenPod(dir, &podconfig.Pod{}, both); !errors.Is(err, errdefs.ErrPrecondition) ||
		!strings.Contains(err.Error(), "runtime.restore") {
		t.Errorf("restoring is off: %v", err)
	}
	n.store.Restore = true
	saved := podtest.Must[[]byte](t)(os.ReadFile(filepath.Join(dir, podName)))
	// spoiled makes a copy with another pod.json.
	spoiled := func(text string) string {
		t.Helper()
		at := t.TempDir()
		podtest.OK(t, os.CopyFS(at, os.DirFS(dir)))
		podtest.OK(t, os.WriteFile(filepath.Join(at, podName), []byte(text), 0o600))
		return at
	}
	linked := spoiled(string(saved))
	podtest.OK(t, os.Rename(filepath.Join(linked, "0"), filepath.Join(linked, "moved")))
	podtest.OK(t, os.Symlink("moved", filepath.Join(linked, "0")))
	for name, tc := range map[string]struct {
		dir        string
		handler    string
		containers []podconfig.Container
		why        string
	}{
		"none":             {dir, "", nil, "0 containers are configured"},
		"one only":         {dir, "", both[:1], "1 containers are configured"},
		"one twice":        {dir, "", named("one", "one"), "named twice"},
		"unknown":          {dir, "", named("one", "three"), `"three" is not in the checkpoint`},
		"relative":         {"x", "", both, "not an absolute path"},
		"no checkpoint":    {t.TempDir(), "", both, "no such file"},
		"other handler":    {dir, "coracle", both, `handler ""`},
		"by way of a link": {linked, "", both, "not a directory in it"},
		"no JSON":          {spoiled("{"), "", both, podName},
		"huge":             {spoiled(strings.Repeat(" ", MaxJSON) + string(saved)), "", both, podName},
		"newer version":    {spoiled(`{"version":2,"containers":["one","two"]}`), "", both, "version 2"},
	} {
		_, err := n.store.OpenPod(tc.dir, &podconfig.Pod{RuntimeHandler: tc.handler}, tc.containers)
		if !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), tc.why) {
			t.Errorf("%s: %v, want %q", name, err, tc.why)
		}
	}
	numbers, err := n.store.OpenPod(dir, &podconfig.Pod{}, both)
	if err != nil || !maps.Equal(numbers, map[string]int{"one": 0, "two": 1}) {
		t.Errorf("got %v, %v", numbers, err)
	}
}
