package shim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHostileStreams: a FIFO, a link or a huge file in place of the list of streams is neither
// waited for, nor followed, nor read to its end.
func TestHostileStreams(t *testing.T) {
	for name, c := range map[string]struct {
		put  func(path string) error
		read int // bytes; -1 if it is refused
	}{
		"ordinary": {func(p string) error { return os.WriteFile(p, []byte("{}"), 0o600) }, 2},
		"huge":     {func(p string) error { return os.WriteFile(p, make([]byte, maxStreams+1), 0o600) }, maxStreams},
		"a FIFO":   {func(p string) error { return unix.Mkfifo(p, 0o600) }, -1},
		"a link":   {func(p string) error { return os.Symlink("/etc/passwd", p) }, -1},
		"a device": {func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }, -1},
		"missing":  {func(string) error { return nil }, -1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.put(filepath.Join(dir, streamsName)); err != nil {
				t.Fatal(err)
			}
			b, err := readStreams(dir)
			if (err != nil) != (c.read < 0) || err == nil && len(b) != c.read {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
}

// TestReadableOnce: who opens CRIU's configuration a second time, as Debian 12's does, finds
// nothing in it.
func TestReadableOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), criuConfigName)
	for range 2 { // whatever is in its place
		if err := os.WriteFile(path, []byte("external file[1:2]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		done, err := readableOnce(path, []byte("one\ntwo\n"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"one\ntwo\n", "", ""} {
			if b, err := os.ReadFile(path); err != nil || string(b) != want {
				t.Errorf("read %q, %v; want %q", b, err, want)
			}
		}
		done()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left of it: %v", err)
		}
	}
}
