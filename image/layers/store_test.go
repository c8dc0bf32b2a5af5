package layers

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a node's store with the overlay driver, whose layers are given, and a Store that has it.
type rig struct {
	testing.TB
	dir    string
	node   *snapshot.Store
	stores *Store

	mu       sync.Mutex
	archives map[digest.Digest][]byte
	made     int // archives
	fail     error
}

func newRig(t *testing.T) *rig {
	r := &rig{TB: t, dir: t.TempDir(), archives: map[digest.Digest][]byte{}}
	if err := unix.Mount("snapshotters-test", r.dir, "tmpfs", 0, ""); err != nil { // the machine's may be an overlay
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(r.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r.begin(snapshot.Native)
	t.Cleanup(func() { r.end() })
	return r
}

// begin is the start of a daemon, with a handler that wants a driver.
func (r *rig) begin(wanted ...snapshot.DriverName) {
	r.Helper()
	log := slog.New(slog.DiscardHandler)
	r.node = snapshot.New(snapshot.Config{Root: filepath.Join(r.dir, "snapshots"), Driver: snapshot.Overlay, Log: log})
	if err := r.node.Start(r.Context()); err != nil {
		r.Fatal(err)
	}
	r.stores = New(Config{
		Root: filepath.Join(r.dir, "snapshotters"), Node: r.node, Driver: snapshot.Overlay, Log: log,
		archive: func(_ context.Context, d digest.Digest, w io.Writer) error {
			r.mu.Lock()
			r.made++
			archive, err := r.archives[d], r.fail
			r.mu.Unlock()
			_, werr := w.Write(archive)
			return errors.Join(werr, err)
		},
	})
	if err := r.stores.Start(r.Context(), wanted); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) end() {
	r.Helper()
	if err := errors.Join(r.stores.Close(), r.node.Close()); err != nil {
		r.Error(err)
	}
}

// layer commits a layer with one file to the node's store.
func (r *rig) layer(content string) digest.Digest {
	r.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "file", Typeflag: tar.TypeReg, Size: int64(len(content)), Mode: 0o644}); err != nil {
		r.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		r.Fatal(err)
	}
	if err := w.Close(); err != nil {
		r.Fatal(err)
	}
	d := digest.FromBytes(b.Bytes())
	r.archives[d] = b.Bytes()
	l, err := r.node.NewLayer(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	if err := unpack.Layer(r.Context(), bytes.NewReader(b.Bytes()), unpack.Target{Dir: l.Dir()}, unpack.Limits{}); err != nil {
		r.Fatal(err)
	}
	if err := l.Commit(r.Context(), d); err != nil {
		r.Fatal(err)
	}
	return d
}

func (r *rig) native() *snapshot.Store {
	r.Helper()
	s, err := r.stores.Of(snapshot.Native)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

func (r *rig) prepare(id string, driver snapshot.DriverName, layers ...digest.Digest) snapshot.Snapshot {
	r.Helper()
	snap, err := r.stores.Prepare(r.Context(), id, snapshot.PrepareOptions{
		Layers: layers, Target: filepath.Join(r.dir, "roots", id),
		Driver: driver,
	})
	if err != nil {
		r.Fatal(err)
	}
	return snap
}

// A root of a handler's driver has what the image has, next to roots of the node's; each is told,
// measured and removed by the store that has it.
func TestRootOfAHandler(t *testing.T) {
	r := newRig(t)
	d := r.layer("content")
	for id, driver := range map[string]snapshot.DriverName{"own": "", "same": snapshot.Overlay, "other": snapshot.Native} {
		snap := r.prepare(id, driver, d)
		if b, err := os.ReadFile(filepath.Join(snap.Target, "file")); err != nil || string(b) != "content" {
			t.Errorf("%s: %q, %v", id, b, err)
		}
		if err := os.WriteFile(filepath.Join(snap.Target, "written"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if u, err := r.stores.Usage(t.Context(), id); err != nil || u.Inodes == 0 {
			t.Errorf("%s: usage %+v, %v", id, u, err)
		}
		var changes bytes.Buffer
		if err := r.stores.Changes(t.Context(), id, &changes); err != nil || !strings.Contains(changes.String(), "written") {
			t.Errorf("%s: changes of %d bytes, %v", id, changes.Len(), err)
		}
	}
	if _, err := r.native().Get("other"); err != nil {
		t.Error(err)
	}
	if r.made != 1 {
		t.Errorf("%d archives made", r.made)
	}
	for _, id := range []string{"own", "same", "other", "none"} {
		if err := r.stores.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if left := append(r.node.List(), r.native().List()...); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// Two containers at once have a layer copied once.
func TestCopiedOnce(t *testing.T) {
	r := newRig(t)
	d := r.layer("content")
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			if err := r.stores.Bring(t.Context(), snapshot.Native, []digest.Digest{d, d}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if r.made != 1 || !r.native().HasLayer(d) {
		t.Errorf("%d archives made, layer: %t", r.made, r.native().HasLayer(d))
	}
	node, _ := r.node.LayerUsage(d)
	if both, err := r.stores.LayerUsage(d); err != nil || both.Bytes <= node.Bytes {
		t.Errorf("usage %+v with its copy, %+v without (%v)", both, node, err)
	}
}

// A copy that fails leaves nothing, and can be tried again.
func TestCopyFails(t *testing.T) {
	r := newRig(t)
	d := r.layer("content")
	r.fail = unpack.ErrDamaged
	err := r.stores.Bring(t.Context(), snapshot.Native, []digest.Digest{d})
	if !errors.Is(err, unpack.ErrDamaged) || !strings.Contains(err.Error(), d.String()) {
		t.Errorf("bring: %v", err)
	}
	if r.native().HasLayer(d) {
		t.Error("a damaged layer was kept")
	}
	r.fail = nil
	if err := r.stores.Bring(t.Context(), snapshot.Native, []digest.Digest{d}); err != nil {
		t.Error(err)
	}
	if err := r.stores.Bring(t.Context(), snapshot.EROFS, nil); !errors.Is(err, snapshot.ErrUnsupported) {
		t.Errorf("a driver that is not open: %v", err)
	}
}

// A copy that may not be on disk yet is waited for: a reset of the machine would leave a root of
// damaged files.
func TestCopyUnderWay(t *testing.T) {
	r := newRig(t)
	d := r.layer("content")
	if err := r.stores.Bring(t.Context(), snapshot.Native, []digest.Digest{d}); err != nil {
		t.Fatal(err)
	}
	release, err := r.stores.busy.Acquire(t.Context(), string(snapshot.Native)+"/"+d.String()) // as who makes it has
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.stores.Bring(ctx, snapshot.Native, []digest.Digest{d}); !errors.Is(err, context.Canceled) {
		t.Errorf("bring: %v", err)
	}
}

// A layer that is removed while it is copied leaves no copy.
func TestRemovedWhileCopied(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		d := r.layer(fmt.Sprint(i))
		copied := make(chan error)
		go func() { copied <- r.stores.Bring(t.Context(), snapshot.Native, []digest.Digest{d}) }()
		if err := r.stores.RemoveLayer(t.Context(), d); err != nil {
			t.Error(err)
		}
		if err := <-copied; err != nil && !errors.Is(err, snapshot.ErrLayerMissing) {
			t.Error(err)
		}
		if r.node.HasLayer(d) || r.native().HasLayer(d) {
			t.Errorf("round %d: left %t, its copy %t", i, r.node.HasLayer(d), r.native().HasLayer(d))
		}
	}
}

// Copies go with their originals, unless a container is made of them.
func TestCopiesGo(t *testing.T) {
	r := newRig(t)
	d := r.layer("content")
	r.prepare("c", snapshot.Native, d)
	if !r.stores.InUse(d) || r.node.InUse(d) {
		t.Error("a layer whose copy is used is in use")
	}
	if err := r.stores.RemoveLayer(t.Context(), d); !errors.Is(err, snapshot.ErrLayerInUse) || !r.node.HasLayer(d) {
		t.Errorf("remove of a layer whose copy is used: %v", err)
	}
	if err := r.stores.Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := r.stores.RemoveLayer(t.Context(), d); err != nil || r.node.HasLayer(d) || r.native().HasLayer(d) {
		t.Errorf("remove: %v", err)
	}
}

// After a restart roots are those of the store that had them; copies that a crash may have damaged,
// and those without an original, are removed. So are all when no handler wants them any more.
func TestRestart(t *testing.T) {
	r := newRig(t)
	whole, cut, orphan := r.layer("whole"), r.layer("cut"), r.layer("orphan")
	if err := r.stores.Bring(t.Context(), snapshot.Native, []digest.Digest{whole, cut, orphan}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"kept", "lost"} {
		r.prepare(id, snapshot.Native, whole)
	}
	r.prepare("own", "", whole)
	if err := os.WriteFile(r.stores.mark(snapshot.Native, cut), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.node.RemoveLayer(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	r.end()

	r.begin(snapshot.Native)
	if s := r.native(); !s.HasLayer(whole) || s.HasLayer(cut) || s.HasLayer(orphan) {
		t.Errorf("layers: %t, %t, %t", s.HasLayer(whole), s.HasLayer(cut), s.HasLayer(orphan))
	}
	if err := r.stores.Recover(t.Context(), []string{"kept", "own"}); err != nil {
		t.Error(err)
	}
	if l := r.native().List(); len(l) != 1 || l[0].ID != "kept" {
		t.Errorf("snapshots: %v", l)
	}
	if err := r.stores.Recover(t.Context(), []string{"kept", "own", "unknown"}); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a claimed root that no one has: %v", err)
	}
	r.end()

	r.begin() // the handler is gone, its container is not
	if s := r.native(); !s.HasLayer(whole) {
		t.Error("the layer of a container was removed")
	}
	for _, id := range []string{"kept", "own"} {
		if err := r.stores.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	r.end()

	r.begin()
	if l, err := r.native().Layers(); err != nil || len(l) != 0 {
		t.Errorf("layers that no one wants: %v, %v", l, err)
	}
}

func TestStartRefuses(t *testing.T) {
	r := newRig(t)
	if err := os.WriteFile(filepath.Join(r.dir, "snapshotters", "erofs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.stores.Start(t.Context(), []snapshot.DriverName{snapshot.EROFS}); err == nil ||
		!strings.Contains(err.Error(), "snapshotter erofs of a runtime handler") {
		t.Errorf("start: %v", err)
	}
	if err := r.stores.Start(t.Context(), nil); err != nil { // a warning is enough
		t.Errorf("start: %v", err)
	}
}
