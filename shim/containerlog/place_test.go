package containerlog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// linkedLog makes a log directory with a container's directory, and one outside of it with a file
// of the log's name.
func linkedLog(t *testing.T) (logs, outside, victim string) {
	t.Helper()
	logs, outside = t.TempDir(), t.TempDir()
	victim = filepath.Join(outside, "0.log")
	if err := errors.Join(os.Mkdir(filepath.Join(logs, "c"), 0o755), os.WriteFile(victim, []byte("host"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return logs, outside, victim
}

// longLog opens a log that is longer than it may be.
func longLog(t *testing.T, dir, path string) (Place, *Log) {
	t.Helper()
	place, err := PlaceOf(dir, path)
	if err != nil {
		t.Fatal(err)
	}
	log, err := Open(place, Limit{FileBytes: 10, Files: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	if _, err := log.f.WriteString(strings.Repeat("x", 20)); err != nil {
		t.Fatal(err)
	}
	return place, log
}

// TestLogFollowsNoLinkOutOfItsDirectory: a container that can write to log directories puts a link
// in place of one, and the shim, which is root on the host, neither opens, renames nor removes
// files there.
func TestLogFollowsNoLinkOutOfItsDirectory(t *testing.T) {
	swap := func(t *testing.T, logs, to string) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(filepath.Join(logs, "c")), os.Symlink(to, filepath.Join(logs, "c"))); err != nil {
			t.Fatal(err)
		}
	}
	unharmed := func(t *testing.T, outside, victim string) {
		t.Helper()
		entries, err := os.ReadDir(outside)
		if content, rerr := os.ReadFile(victim); err != nil || rerr != nil || string(content) != "host" || len(entries) != 1 {
			t.Errorf("host's file %q, %v; directory %v, %v", content, rerr, entries, err)
		}
	}
	for name, relative := range map[string]bool{"absolute": false, "relative": true} {
		t.Run(name, func(t *testing.T) {
			logs, outside, victim := linkedLog(t)
			place, log := longLog(t, logs, filepath.Join(logs, "c/0.log"))
			to := outside
			if relative {
				var err error
				if to, err = filepath.Rel(logs, outside); err != nil {
					t.Fatal(err)
				}
			}
			swap(t, logs, to)
			kept := func() { t.Error("goes on in a file outside") }
			if err := log.Reopen(kept); !errors.Is(err, ErrInvalid) {
				t.Errorf("reopen: %v, want a refusal", err)
			}
			if err := log.rotate(10, kept); !errors.Is(err, ErrInvalid) {
				t.Errorf("rotate: %v, want a refusal", err)
			}
			if f, err := Open(place, Limit{}); !errors.Is(err, ErrInvalid) {
				t.Errorf("open: %v, %v, want a refusal", f, err)
			}
			log.f.Truncate(0)
			log.Discard() // which removes an empty log
			unharmed(t, outside, victim)

			// The attack wins against a place whose parents are followed, as those of older daemons
			// are.
			unsafe, err := PlaceOf("", filepath.Join(logs, "c/0.log"))
			if err != nil {
				t.Fatal(err)
			}
			won, err := Open(unsafe, Limit{})
			if err != nil {
				t.Fatalf("control: %v", err)
			}
			defer won.Close()
			if _, err := won.f.WriteString("!"); err != nil {
				t.Fatal(err)
			}
			if content, err := os.ReadFile(victim); string(content) != "host!" {
				t.Errorf("control: %q, %v", content, err)
			}
		})
	}
}

// TestLogByLinkInside: a link that stays in the log directory is followed.
func TestLogByLinkInside(t *testing.T) {
	logs, _, _ := linkedLog(t)
	if err := os.Symlink("c", filepath.Join(logs, "other")); err != nil {
		t.Fatal(err)
	}
	log, err := Open(Place{logs, "other/0.log"}, Limit{})
	if err != nil {
		t.Fatal(err)
	}
	log.Close()
	if _, err := os.Stat(filepath.Join(logs, "c/0.log")); err != nil {
		t.Error(err)
	}
}

// FuzzPlaceOf: whatever the two paths are, the place is below the directory, and is the path.
func FuzzPlaceOf(f *testing.F) {
	f.Add("/var/log/pods/x", "/var/log/pods/x/c/0.log")
	f.Add("", "/0.log")
	f.Add("/a", "/a/../b")
	f.Add("/a", "/ab/c")
	f.Add("/", "/x")
	f.Fuzz(func(t *testing.T, dir, path string) {
		p, err := PlaceOf(dir, path)
		if err != nil {
			return
		}
		if !filepath.IsLocal(p.name) || p.path() != filepath.Clean(path) || p.name == "." || dir != "" && p.dir != dir {
			t.Errorf("%q, %q: %+v", dir, path, p)
		}
	})
}

// Regression: errors of a rotation named /proc/self/fd/9/0.log.
func TestRotationErrorsNameTheLog(t *testing.T) {
	dir := t.TempDir()
	place, log := longLog(t, dir, filepath.Join(dir, "0.log"))
	for name, step := range map[string]func(path string) error{
		"rename": func(path string) error { return os.Rename(path+"/none", path) },
		"remove": func(path string) error { return os.Remove(path + "/none") },
	} {
		err := place.rotating(step)
		if want := "rotate log " + place.path() + ": " + name + ": not a directory"; err == nil || err.Error() != want ||
			!errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	// The log has its name when it is looked for, and no directory when it is to be renamed.
	log.place.dir = filepath.Join(dir, "none")
	err := log.rotate(10, func() { t.Error("goes on in another file") })
	if !errors.Is(err, ErrInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

// TestAttackDeviceInPlaceOfLog: a container that can write to log directories makes a device node
// in place of a log, or a pipe. The shim, which may open any device of the host, opens neither.
func TestAttackDeviceInPlaceOfLog(t *testing.T) {
	for name, kind := range map[string]uint32{"device": unix.S_IFCHR, "pipe": unix.S_IFIFO} {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := unix.Mknod(path, kind|0o600, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatal(err)
		}
		opened := opens(t, path)
		f, err := os.OpenFile(path, os.O_RDWR, 0) // a pipe's other end, too, or the shim could not open this one
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if !opened() {
			t.Fatal("a plain open is not seen: this test proves nothing")
		}
		place, err := PlaceOf("", path)
		if err != nil {
			t.Fatal(err)
		}
		if log, err := Open(place, Limit{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: opened %v, %v", name, log, err)
		}
		if opened() {
			t.Errorf("the shim opened the %s", name)
		}
	}
}

// opens says whether a file has been opened for reading or writing since the last call.
func opens(t *testing.T, path string) func() bool {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	return func() bool {
		n, err := unix.Read(fd, make([]byte, 4<<10))
		return err == nil && n > 0
	}
}
