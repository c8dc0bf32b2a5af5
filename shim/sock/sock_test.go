package sock_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/sock"
)

// The socket is its owner's, and takes the place of what was there.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	defer unix.Umask(unix.Umask(0))
	for _, network := range []string{"unix", "unixpacket", "unix"} {
		l, err := sock.Listen(dir, "s", network)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if st, err := os.Stat(filepath.Join(dir, "s")); err != nil || st.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s: %v, %v", network, st, err)
		}
	}
}

// Who waits for a socket with inotify is told when it can be connected to: the file comes sooner.
func TestListenTellsThoseWhoWait(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	l, err := sock.Listen(dir, "s", "unixpacket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	var masks []uint32
	for events := buf[:n]; len(events) >= unix.SizeofInotifyEvent; {
		masks = append(masks, binary.NativeEndian.Uint32(events[4:]))
		events = events[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(events[12:]):]
	}
	if !slices.Equal(masks, []uint32{unix.IN_CREATE, unix.IN_ATTRIB}) {
		t.Errorf("events %#x, want a creation and a change of the mode", masks)
	}
}

// Regression: a process that removed the new socket made Listen fail.
func TestListenWhileOthersRemoveIt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	stop, removed := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				removed <- n
				return
			default:
				if err := os.Remove(path); err == nil {
					n++
				} else if !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
			}
		}
	}()
	for range 5000 {
		l, err := sock.Listen(dir, "s", "unix")
		if err != nil {
			t.Error(err)
			break
		}
		_ = l.Close()
	}
	close(stop)
	if n := <-removed; n == 0 {
		t.Error("no socket was removed")
	} else {
		t.Logf("%d sockets were removed", n)
	}
}

// Processes that make the same socket at the same time get one each.
func TestListenAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 5000 {
				l, err := sock.Listen(dir, "s", "unix")
				if err != nil {
					t.Error(err)
					return
				}
				_ = l.Close()
			}
		})
	}
	all.Wait()
}
