package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHostileStreams: what stands in the place of the streams' names is neither waited for nor followed,
// nor read to its end.
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
