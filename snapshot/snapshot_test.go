package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// prepared makes a snapshot at a target of its own.
func prepared(t *testing.T, s *Store, id string, layers ...digest.Digest) Snapshot {
	t.Helper()
	snap, err := s.Prepare(t.Context(), id, PrepareOptions{Layers: layers, Target: filepath.Join(t.TempDir(), id, "rootfs")})
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func mountOf(t *testing.T, target string) *mountinfo.Info {
	t.Helper()
	m, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(target))
	if err != nil || len(m) != 1 {
		t.Fatalf("mounts at %s: %v, %v", target, m, err)
	}
	return m[0]
}

func TestPrepareShowsAllLayers(t *testing.T) {
	for _, n := range []int{0, 1, 3, 130} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := started(t, t.TempDir())
			snap := prepared(t, s, "c", commitLayers(t, s, n)...)
			entries, err := os.ReadDir(snap.Target)
			if err != nil {
				t.Fatal(err)
			}
			want := n + 1
			if n == 0 {
				want = 0
			}
			if len(entries) != want {
				t.Errorf("%d entries, want %d", len(entries), want)
			}
			if n > 0 && read(t, filepath.Join(snap.Target, "top")) != fmt.Sprint(n-1) {
				t.Error("a lower layer hides an upper one")
			}
			write(t, filepath.Join(snap.Target, "new"), "new")
			if read(t, filepath.Join(snap.Upper, "new")) != "new" {
				t.Error("a write does not reach the upper directory")
			}
		})
	}
}

func TestMountOptions(t *testing.T) {
	s := started(t, t.TempDir())
	snap := prepared(t, s, "c", commitLayers(t, s, 2)...)
	options := mountOf(t, snap.Target).VFSOptions
	for _, want := range []string{"volatile", "upperdir=" + snap.Upper} {
		if !strings.Contains(options, want) {
			t.Errorf("options lack %s: %s", want, options)
		}
	}
	for _, bad := range []string{"userxattr", "metacopy=on", "index=on"} {
		if strings.Contains(options, bad) {
			t.Errorf("options have %s: %s", bad, options)
		}
	}
}

// Regression: the kernel takes no directory twice in one overlay (ELOOP), but images
// have the same layer twice, mostly an empty one.
func TestLayerTwice(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 2)
	snap := prepared(t, s, "c", layers[0], layers[1], layers[0], layers[0])
	for file, want := range map[string]string{"top": "0", "0": "0", "1": "1"} {
		if got := read(t, filepath.Join(snap.Target, file)); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	s = restarted(t, s)
	if err := s.Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	for _, d := range layers {
		if err := s.RemoveLayer(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
}

func TestWhiteoutsAndOpaqueDirectories(t *testing.T) {
	s := started(t, t.TempDir())
	mkdir := func(path string) {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lower := commitLayer(t, s, "lower", func(dir string) {
		write(t, filepath.Join(dir, "deleted"), "x")
		write(t, filepath.Join(dir, "kept"), "x")
		mkdir(filepath.Join(dir, "opaque"))
		write(t, filepath.Join(dir, "opaque", "hidden"), "x")
	})
	upper := commitLayer(t, s, "upper", func(dir string) {
		if err := unix.Mknod(filepath.Join(dir, "deleted"), unix.S_IFCHR, 0); err != nil {
			t.Fatal(err)
		}
		mkdir(filepath.Join(dir, "opaque"))
		if err := unix.Setxattr(filepath.Join(dir, "opaque"), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "opaque", "shown"), "x")
	})
	snap := prepared(t, s, "c", lower, upper)
	for name, want := range map[string]bool{"deleted": false, "kept": true, "opaque/hidden": false, "opaque/shown": true} {
		if got := exists(filepath.Join(snap.Target, name)); got != want {
			t.Errorf("%s: exists %t", name, got)
		}
	}
}

func TestSnapshotsShareLayersAndNothingElse(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 2)
	a, b := prepared(t, s, "a", layers...), prepared(t, s, "b", layers[0])
	write(t, filepath.Join(a.Target, "0"), "changed")
	if err := os.Remove(filepath.Join(a.Target, "top")); err != nil {
		t.Fatal(err)
	}
	if read(t, filepath.Join(b.Target, "0")) != "0" || read(t, filepath.Join(b.Target, "top")) != "0" {
		t.Error("one snapshot sees another's changes")
	}
}

func TestRemove(t *testing.T) {
	s := started(t, t.TempDir())
	snap := prepared(t, s, "c", commitLayers(t, s, 1)...)
	write(t, filepath.Join(snap.Target, "file"), "x")
	for range 2 {
		if err := s.Remove(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exists(snap.Target) || exists(s.snapshotDir("c")) {
		t.Error("directories are left")
	}
	if left, _ := os.ReadDir(s.stagingDir()); len(left) > 0 {
		t.Errorf("staging has %v", left)
	}
	if _, err := s.Get("c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
}

func TestPrepareTwice(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 2)
	snap := prepared(t, s, "c", layers...)
	write(t, filepath.Join(snap.Target, "file"), "x")
	again, err := s.Prepare(t.Context(), "c", PrepareOptions{Layers: layers, Target: snap.Target})
	if err != nil || again.Upper != snap.Upper || !exists(filepath.Join(again.Target, "file")) {
		t.Errorf("%+v, %v", again, err)
	}
	mountOf(t, snap.Target) // one, not two
	for name, o := range map[string]PrepareOptions{
		"layers": {Layers: layers[:1], Target: snap.Target},
		"target": {Layers: layers, Target: snap.Target + "2"},
	} {
		if _, err := s.Prepare(t.Context(), "c", o); !errors.Is(err, ErrExists) {
			t.Errorf("other %s: error %v", name, err)
		}
	}
}

func TestPrepareRefuses(t *testing.T) {
	s := started(t, t.TempDir())
	target := filepath.Join(t.TempDir(), "target")
	missing := digest.FromString("missing")
	for _, tc := range []struct {
		name, id string
		o        PrepareOptions
		kind     error
	}{
		{"empty id", "", PrepareOptions{Target: target}, ErrInvalid},
		{"path as id", "a/b", PrepareOptions{Target: target}, ErrInvalid},
		{"climbing id", "..", PrepareOptions{Target: target}, ErrInvalid},
		{"hidden id", ".a", PrepareOptions{Target: target}, ErrInvalid},
		{"option in id", "a,lowerdir=", PrepareOptions{Target: target}, ErrInvalid},
		{"NUL in id", "a\x00", PrepareOptions{Target: target}, ErrInvalid},
		{"long id", strings.Repeat("a", 65), PrepareOptions{Target: target}, ErrInvalid},
		{"relative target", "a", PrepareOptions{Target: "target"}, ErrInvalid},
		{"bad digest", "a", PrepareOptions{Target: target, Layers: []digest.Digest{"sha256:../../x"}}, ErrInvalid},
		{"other algorithm", "a", PrepareOptions{Target: target, Layers: []digest.Digest{digest.SHA512.FromString("x")}}, ErrInvalid},
		{"missing layer", "a", PrepareOptions{Target: target, Layers: []digest.Digest{missing}}, ErrLayerMissing},
	} {
		if _, err := s.Prepare(t.Context(), tc.id, tc.o); !errors.Is(err, tc.kind) {
			t.Errorf("%s: error %v", tc.name, err)
		}
	}
	for _, id := range []string{"", "..", "a/b"} {
		if err := s.Remove(t.Context(), id); !errors.Is(err, ErrInvalid) {
			t.Errorf("Remove(%q): %v", id, err)
		}
	}
	if left, _ := os.ReadDir(s.snapshotsDir()); len(left) > 0 || exists(target) || len(s.List()) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestPrepareOverAnotherOverlay(t *testing.T) {
	s := started(t, t.TempDir())
	first := prepared(t, s, "first")
	_, err := s.Prepare(t.Context(), "second", PrepareOptions{Target: first.Target})
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), first.Target) {
		t.Errorf("error %v", err)
	}
	mountOf(t, first.Target)
	if len(s.List()) != 1 {
		t.Errorf("snapshots: %v", s.List())
	}
}

func TestPrepareAtAFile(t *testing.T) {
	s := started(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "x")
	if _, err := s.Prepare(t.Context(), "c", PrepareOptions{Target: file}); err == nil {
		t.Error("no error")
	}
	if len(s.List()) != 0 || exists(s.snapshotDir("c")) || read(t, file) != "x" {
		t.Error("something is left, or the file is gone")
	}
}

func TestConcurrentUse(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 3)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 10 {
		id := fmt.Sprint("c", i)
		wg.Go(func() {
			if _, err := s.Prepare(t.Context(), id, PrepareOptions{Layers: layers, Target: filepath.Join(dir, id)}); err != nil {
				t.Error(err)
			}
			if i%2 == 0 {
				if err := s.Remove(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() { // the same id, many times
			if _, err := s.Prepare(t.Context(), "same", PrepareOptions{Layers: layers, Target: filepath.Join(dir, "same")}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(s.List()); n != 6 {
		t.Errorf("%d snapshots", n)
	}
	mountOf(t, filepath.Join(dir, "same"))
}

func TestBadRoot(t *testing.T) {
	for name, root := range map[string]string{
		"relative": "root", "empty": "", "long": "/tmp/" + strings.Repeat("a", maxRoot),
		"colon": "/tmp/a:b", "comma": "/tmp/a,b", "backslash": `/tmp/a\b`,
	} {
		if err := New(Config{Root: root}).Start(t.Context()); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestRootThatCannotHoldSnapshots(t *testing.T) {
	outer := started(t, t.TempDir())
	snap := prepared(t, outer, "c")
	err := New(Config{Root: filepath.Join(snap.Target, "root")}).Start(t.Context())
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "type overlay") {
		t.Errorf("error %v", err)
	}
}
