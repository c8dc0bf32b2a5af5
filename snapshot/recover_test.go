package snapshot

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/driver"
)

func TestMountsOutliveTheStore(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 2)
	snap := prepared(t, s, "c", layers...)
	write(t, filepath.Join(snap.Target, "file"), "x")
	s = restarted(t, s)
	if got, err := s.Get("c"); err != nil || got.Target != snap.Target || len(got.Layers) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	again, err := s.Prepare(t.Context(), "c", PrepareOptions{Layers: layers, Target: snap.Target})
	if err != nil || !exists(filepath.Join(again.Target, "file")) {
		t.Errorf("prepare again: %v", err)
	}
	mountOf(t, snap.Target)
}

// The state directory may be reached through a symbolic link, as /var/run is; the kernel knows
// the real path.
func TestMountsBelowALinkOutliveTheStore(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 2)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	o := PrepareOptions{Layers: layers, Target: filepath.Join(link, "rootfs")}
	if _, err := s.Prepare(t.Context(), "c", o); err != nil {
		t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(o.Target)
	if err != nil {
		t.Fatal(err)
	}
	mountOf(t, real)
	s = restarted(t, s)
	mountOf(t, real)
	// Its upper directory is still there: a container that runs can write.
	write(t, filepath.Join(o.Target, "file"), "x")
	if again, err := s.Prepare(t.Context(), "c", o); err != nil || !exists(filepath.Join(again.Target, "file")) {
		t.Errorf("prepare again: %v", err)
	}
	write(t, filepath.Join(o.Target, "later"), "x")
	if err := s.Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if exists(real) {
		t.Error("the target is left behind")
	}
}

// The states that a crash can leave at each fault point of Prepare and Remove.
func TestHalfStates(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, s *Store, snap Snapshot){
		"directory without a record": func(t *testing.T, s *Store, snap Snapshot) {
			if err := errors.Join(s.driver.Unmount(snap.Target), os.RemoveAll(s.snapshotDir("c")), os.Mkdir(s.snapshotDir("c"), 0o700)); err != nil {
				t.Fatal(err)
			}
		},
		"broken record": func(t *testing.T, s *Store, snap Snapshot) {
			if err := s.driver.Unmount(snap.Target); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(s.snapshotDir("c"), recordName), "{")
		},
		"snapshot.prepare.recorded": func(t *testing.T, s *Store, snap Snapshot) {
			if err := errors.Join(s.driver.Unmount(snap.Target), os.RemoveAll(snap.Upper),
				os.RemoveAll(filepath.Join(s.snapshotDir("c"), "work"))); err != nil {
				t.Fatal(err)
			}
		},
		"snapshot.prepare.mounted": func(*testing.T, *Store, Snapshot) {},
		"snapshot.remove.unmounted": func(t *testing.T, s *Store, snap Snapshot) {
			if err := s.driver.Unmount(snap.Target); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for what, finish := range map[string]func(*Store, PrepareOptions) error{
			"prepare": func(s *Store, o PrepareOptions) error {
				if _, err := s.Prepare(t.Context(), "c", o); err != nil {
					return err
				}
				mountOf(t, o.Target)
				if read(t, filepath.Join(o.Target, "0")) != "0" {
					return errors.New("wrong content")
				}
				return os.WriteFile(filepath.Join(o.Target, "new"), nil, 0o600)
			},
			"remove":  func(s *Store, _ PrepareOptions) error { return s.Remove(t.Context(), "c") },
			"recover": func(s *Store, _ PrepareOptions) error { return s.Recover(t.Context(), nil) },
		} {
			t.Run(name+" then "+what, func(t *testing.T) {
				s := started(t, t.TempDir())
				layers := commitLayers(t, s, 1)
				snap := prepared(t, s, "c", layers...)
				leave(t, s, snap)
				_ = s.Close()
				s = started(t, s.root)
				if err := finish(s, PrepareOptions{Layers: layers, Target: snap.Target}); err != nil {
					t.Fatal(err)
				}
				if what != "prepare" {
					if err := s.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
					if left, _ := os.ReadDir(s.snapshotsDir()); len(left) > 0 {
						t.Errorf("left: %v", left)
					}
				}
			})
		}
	}
}

func TestRecoverAfterAReset(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 1)
	used, unused, unclaimed := prepared(t, s, "used", layers...), prepared(t, s, "unused", layers...), prepared(t, s, "unclaimed", layers...)
	write(t, filepath.Join(used.Target, "file"), "x")
	for _, snap := range []Snapshot{used, unused, unclaimed} {
		if err := s.driver.Unmount(snap.Target); err != nil {
			t.Fatal(err)
		}
	}
	s = restarted(t, s)
	err := s.Recover(t.Context(), []string{"used", "unused", "unknown"})
	if !errors.Is(err, ErrUnclean) || !strings.Contains(err.Error(), used.Upper) || !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "unknown") {
		t.Errorf("error %v", err)
	}
	mountOf(t, unused.Target)
	if _, err := s.Get("unclaimed"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unclaimed: %v", err)
	}
	if exists(filepath.Join(used.Target, "0")) {
		t.Error("a dirty volatile layer was mounted again")
	}
	if err := s.Remove(t.Context(), "used"); err != nil {
		t.Error(err)
	}
}

func TestStartUnmountsStrays(t *testing.T) {
	s := started(t, t.TempDir())
	snap := prepared(t, s, "c")
	elsewhere := t.TempDir()
	if err := unix.Mount(snap.Target, elsewhere, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	gone := prepared(t, s, "gone")
	if err := os.RemoveAll(s.snapshotDir("gone")); err != nil {
		t.Fatal(err)
	}
	s.forget("gone")
	restarted(t, s)
	for _, dir := range []string{elsewhere, gone.Target} {
		if m, err := driver.IsOverlayRoot(dir); err != nil || m {
			t.Errorf("%s: mounted %t, %v", dir, m, err)
		}
	}
	mountOf(t, snap.Target)
}

func TestRecordOfAnotherDirectoryIsNotBelieved(t *testing.T) {
	s := started(t, t.TempDir())
	if err := os.Mkdir(s.snapshotDir("c"), 0o700); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(Snapshot{ID: "c", Target: "/", Upper: "/etc"})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(s.snapshotDir("c"), recordName), string(data))
	s = restarted(t, s)
	if len(s.List()) != 0 {
		t.Errorf("%v", s.List())
	}
}

// A probe that is killed leaves its mount in staging, where it could never be deleted.
func TestStartUnmountsProbes(t *testing.T) {
	s := started(t, t.TempDir())
	_ = s.Close()
	dir := filepath.Join(s.stagingDir(), "killed")
	for _, at := range []string{filepath.Join(dir, "target"), filepath.Join(dir, "target", "on top")} {
		if err := errors.Join(os.MkdirAll(at, 0o700), unix.Mount("tmpfs", at, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
	}
	s = started(t, s.root)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exists(dir) {
		t.Error("the probe's directory is left")
	}
}
