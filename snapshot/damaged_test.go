package snapshot

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/driver"

	"github.com/coracle-project/coracle/snapshot/layer"
)

// damages are what can become of a record.
var damages = map[string]func(file string) error{
	"empty":       func(file string) error { return os.Truncate(file, 0) },
	"cut":         func(file string) error { return os.Truncate(file, 10) },
	"gone":        os.Remove,
	"a directory": func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
}

// Regression: what a container ran from was deleted at the next start when the record of its layer
// was damaged.
func TestDriverKeepsLayersWithDamagedRecords(t *testing.T) {
	for what, damage := range damages {
		t.Run(what, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, s *Store) {
				layers := twoLayers(t, s)
				snap := prepared(t, s, "c", layers...)
				before := looks(t, snap.Target)
				for _, d := range layers {
					must(t, damage(filepath.Join(layerDir(s, d), "layer.json")))
				}
				for range 2 {
					s = again(t, s)
					must(t, s.Flush(t.Context()))
					if diff := cmp.Diff(before, looks(t, snap.Target)); diff != "" {
						t.Fatalf("a running container lost its files: %s", diff)
					}
					if s.HasLayer(layers[0]) || s.HasLayer(layers[1]) {
						t.Error("a damaged layer is offered")
					}
				}
				for _, name := range []string{"lower", "upper"} { // pulled again
					_ = commitLayer(t, s, name, func(string) {})
				}
				must(t, s.Flush(t.Context()))
				if diff := cmp.Diff(before, looks(t, snap.Target)); diff != "" {
					t.Errorf("a running container lost its files to the repair: %s", diff)
				}
				must(t, s.Remove(t.Context(), "c"))
				s = again(t, s)
				if left, _ := os.ReadDir(quarantineDir(s)); len(left) != 0 {
					t.Errorf("quarantine still has %v", left)
				}
			})
		})
	}
}

// Regression: the week began when the layer was unpacked.
func TestQuarantineLastsFromWhenItBegins(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 2)
	old := time.Now().AddDate(0, 0, -14)
	for _, d := range layers {
		must(t, os.Chtimes(layerDir(s, d), old, old))
	}
	must(t, s.Quarantine(layers[0]))
	must(t, os.Truncate(filepath.Join(layerDir(s, layers[1]), "layer.json"), 0))
	s = restarted(t, s)
	left, err := os.ReadDir(quarantineDir(s))
	if err != nil || len(left) != 2 {
		t.Fatalf("quarantine has %v, %v", left, err)
	}
	for _, e := range left {
		must(t, os.Chtimes(filepath.Join(quarantineDir(s), e.Name()), old, old))
	}
	s = restarted(t, s)
	if left, _ := os.ReadDir(quarantineDir(s)); len(left) != 0 {
		t.Errorf("after a week quarantine has %v", left)
	}
}

// Regression: what a container had written was deleted at the next start when the record of its
// snapshot was damaged, and its root unmounted.
func TestDriverKeepsSnapshotsWithDamagedRecords(t *testing.T) {
	for what, damage := range damages {
		t.Run(what, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, s *Store) {
				layers := twoLayers(t, s)
				snap := prepared(t, s, "c", layers...)
				write(t, filepath.Join(snap.Target, "mine"), "x")
				elsewhere := t.TempDir() // which of the two is the target the mounts do not say
				must(t, unix.Mount(snap.Target, elsewhere, "", unix.MS_BIND, ""))
				before := looks(t, snap.Target)
				must(t, damage(filepath.Join(s.snapshotDir("c"), recordName)))
				must(t, damage(filepath.Join(layerDir(s, layers[0]), "layer.json")))
				for range 2 {
					s = again(t, s)
					must(t, errors.Join(s.Recover(t.Context(), []string{"c"}), s.Flush(t.Context())))
					for _, dir := range []string{snap.Target, elsewhere} {
						mountOf(t, dir)
						if diff := cmp.Diff(before, looks(t, dir)); diff != "" {
							t.Fatalf("a running container lost its files: %s", diff)
						}
					}
				}
				_ = commitLayer(t, s, "lower", func(string) {}) // pulled again
				must(t, s.Flush(t.Context()))
				if diff := cmp.Diff(before, looks(t, snap.Target)); diff != "" {
					t.Errorf("a running container lost its files to the repair: %s", diff)
				}
				if err := s.RemoveLayer(t.Context(), layers[1]); !errors.Is(err, ErrLayerInUse) {
					t.Errorf("a layer that it may be made of is removed: %v", err)
				}
				if _, err := s.Prepare(t.Context(), "c", snap.options()); !errors.Is(err, ErrExists) || !errors.Is(err, errDamagedRecord) {
					t.Errorf("prepare: %v", err)
				}
				if err := s.Changes(t.Context(), "c", io.Discard); !errors.Is(err, errDamagedRecord) {
					t.Errorf("changes: %v", err)
				}
				if u, err := s.Usage(t.Context(), "c"); err != nil || u.Inodes < 2 {
					t.Errorf("usage %+v, %v", u, err)
				}
				must(t, s.Remove(t.Context(), "c"))
				must(t, errors.Join(s.RemoveLayer(t.Context(), layers[1]), s.Flush(t.Context())))
				if exists(snap.Target) || exists(s.snapshotDir("c")) {
					t.Error("directories are left")
				}
				if m, err := driver.IsMountRoot(elsewhere); err != nil || m {
					t.Errorf("mounted elsewhere still: %t, %v", m, err)
				}
			})
		})
	}
}

// What was written before a reset is not to be trusted, but whose it is says when it goes.
func TestDriverKeepsWhatWasWrittenWithDamagedRecords(t *testing.T) {
	for what, damage := range damages {
		t.Run(what, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, s *Store) {
				snap := prepared(t, s, "c", twoLayers(t, s)...)
				write(t, filepath.Join(snap.Target, "mine"), "x")
				must(t, s.driver.Unmount(snap.Target))
				must(t, damage(filepath.Join(s.snapshotDir("c"), recordName)))
				s = again(t, s)
				err := s.Recover(t.Context(), []string{"c"})
				if !errors.Is(err, ErrUnclean) || !strings.Contains(err.Error(), snap.Upper) {
					t.Errorf("error %v", err)
				}
				must(t, s.Flush(t.Context()))
				if read(t, filepath.Join(snap.Upper, "mine")) != "x" {
					t.Error("what was written is gone")
				}
				must(t, errors.Join(s.Recover(t.Context(), nil), s.Flush(t.Context())))
				if left, _ := os.ReadDir(s.snapshotsDir()); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

// Regression: a file among the directories of mounts or lazy layers kept the daemon from starting.
func TestDriverStartsWithStrangeEntries(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		snap := prepared(t, s, "c", layers...)
		before := looks(t, snap.Target)
		for _, in := range []string{driver.MountsDir, "lazy", "layers/sha256", "snapshots", "quarantine"} {
			dir := filepath.Join(s.root, in)
			must(t, os.MkdirAll(filepath.Join(dir, "dir", "sub"), 0o700))
			for _, name := range []string{"file", strings.Repeat("a", 64), "dir/file"} {
				write(t, filepath.Join(dir, name), "x")
			}
			must(t, os.Symlink("/nowhere", filepath.Join(dir, "link")))
		}
		for range 2 {
			s = again(t, s)
			must(t, errors.Join(s.Recover(t.Context(), []string{"c"}), s.Flush(t.Context())))
			if diff := cmp.Diff(before, looks(t, snap.Target)); diff != "" {
				t.Fatal(diff)
			}
			if all, _ := s.Layers(); len(all) != 2 || len(s.List()) != 1 {
				t.Errorf("layers %v, snapshots %v", all, s.List())
			}
		}
	})
}

// Regression: without a free descriptor for a moment, all layers counted as damaged and were set
// aside. Every image had to be pulled again, and the snapshots were as useless as damaged ones.
func TestRecordsThatCannotBeReadForAMoment(t *testing.T) {
	for _, cause := range []error{unix.EMFILE, unix.ENOMEM, unix.EIO} {
		t.Run(cause.Error(), func(t *testing.T) {
			s := started(t, t.TempDir())
			layers := commitLayers(t, s, 2)
			snap := prepared(t, s, "c", layers...)
			must(t, s.Close())
			failing := func(failures int) *Store {
				s := New(Config{Root: s.root, Log: slog.New(slog.DiscardHandler)})
				s.readFile = func(path string) ([]byte, error) {
					if failures--; failures >= 0 {
						return nil, &os.PathError{Op: "open", Path: path, Err: cause}
					}
					return os.ReadFile(path)
				}
				return s
			}
			if cause != unix.EIO { // as long as this process lives
				if err := failing(1000).Start(t.Context()); !errors.Is(err, cause) {
					t.Errorf("start without descriptors: %v", err)
				}
			}
			again := failing(3)
			must(t, again.Start(t.Context()))
			defer func() { must(t, again.Close()) }()
			if !again.HasLayer(layers[0]) || !again.HasLayer(layers[1]) {
				t.Error("a layer was set aside")
			}
			if _, err := again.Prepare(t.Context(), "c", snap.options()); err != nil {
				t.Errorf("the snapshot is taken to be damaged: %v", err)
			}
		})
	}
}

// Regression: one directory that could not be moved away, here because it is a mount point,
// prevented the store, and so the daemon, from starting.
func TestStartDoesNotNeedToDropStrays(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 1)
	snap := prepared(t, s, "c", layers...)
	write(t, filepath.Join(snap.Target, "file"), "x")
	must(t, s.Close())
	old := filepath.Join(quarantineDir(s), strings.Repeat("b", 64)+".X")
	strays := []string{
		filepath.Join(s.snapshotsDir(), "stray"), filepath.Join(layer.Top(s.root), "no-layer"),
		filepath.Join(layer.Top(s.root), strings.Repeat("a", 64)), old,
	}
	for _, dir := range strays {
		must(t, os.Mkdir(dir, 0o700))
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
		defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	}
	long := time.Now().AddDate(0, 0, -14)
	must(t, os.Chtimes(old, long, long))
	s = started(t, s.root)
	if !s.HasLayer(layers[0]) || read(t, filepath.Join(snap.Target, "file")) != "x" {
		t.Error("what is whole is not there")
	}
	for _, dir := range strays {
		if !exists(dir) {
			t.Errorf("%s is gone", dir)
		}
	}
	prepared(t, s, "d", layers...)
}
