package sock_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/sock"
)

// The socket is its owner's from the start, whatever the umask, and in place of what was there.
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
