package crilog

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAttackDeviceInPlaceOfLog: a container that can write to log directories makes a device node,
// or a pipe, in place of a log. A reader of the log, who is the host's root, opens neither.
func TestAttackDeviceInPlaceOfLog(t *testing.T) {
	for name, kind := range map[string]uint32{"device": unix.S_IFCHR, "pipe": unix.S_IFIFO} {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := unix.Mknod(path, kind|0o600, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatal("needs root: ", err)
		}
		watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(watch)
		if _, err := unix.InotifyAddWatch(watch, path, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
		opened := func() bool {
			n, err := unix.Read(watch, make([]byte, 4<<10))
			return err == nil && n > 0
		}
		fd, err := unix.Open(path, unix.O_RDWR, 0) // a pipe's other end, too, or open would wait
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if !opened() {
			t.Fatal("a plain open is not seen: this test proves nothing")
		}
		if r, err := open(path); err == nil {
			r.close()
			t.Errorf("opened the %s as a log", name)
		}
		if opened() {
			t.Errorf("the %s was opened", name)
		}
	}
}
