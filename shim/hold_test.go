package shim

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/keeper"
)

// logged passes the messages of a log to a test.
type logged chan string

func (l logged) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// next waits for a message that contains text.
func (l logged) next(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case got := <-l:
			if strings.Contains(got, text) {
				return
			}
		case <-deadline:
			t.Fatalf("not logged: %s", text)
		}
	}
}

// answerInfo answers as a keeper of an old version does: it knows no request.
func answerInfo(l *net.UnixListener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for b := make([]byte, 1000); ; {
				if n, err := c.Read(b); err != nil || n == 0 {
					return
				}
				answer := append([]byte{}, byte(0x100-int(unix.ENOSYS)), 0xff, 0xff, 0xff, 0, 0, 0, 0)
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}

// A shim that cannot wait for the next keeper (no descriptor for inotify or, in this test, no
// directory) tries again until it can. It used to give up for good.
func TestWatchKeeperTriesAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	log := make(logged, 100)
	h := &hold{dir: dir, log: slog.New(slog.NewTextHandler(log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	again, ended := make(chan struct{}, 10), make(chan struct{})
	go func() {
		defer close(ended)
		h.watch(ctx, func() { again <- struct{}{} })
	}()
	defer func() {
		cancel()
		<-ended
	}()
	for range 2 {
		log.next(t, "no such file or directory")
	}
	// The directory is created with the socket, and then removed again.
	for i := range 2 {
		made := filepath.Join(t.TempDir(), "made")
		if err := os.Mkdir(made, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := keeper.Listen(made)
		if err != nil {
			t.Fatal(err)
		}
		go answerInfo(l)
		if err := os.Rename(made, dir); err != nil {
			t.Fatal(err)
		}
		select {
		case <-again:
		case <-time.After(20 * time.Second):
			t.Fatal("no keeper, round ", i)
		}
		k := h.keeper()
		if err := os.Rename(dir, made); err != nil {
			t.Fatal(err)
		}
		l.Close()
		k.Close()
		log.next(t, "cannot wait for a keeper")
	}
}

// The keeper's directory is removed while the shim waits in it.
func TestWatchKeeperDirectoryReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 100)
	got := make(chan *keeper.Keeper)
	go func() {
		k, _ := keeper.Await(t.Context(), dir, func(err error) { failed <- err })
		got <- k
	}()
	waitForInotify(t)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	<-failed
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := keeper.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go answerInfo(l)
	select {
	case k := <-got:
		if k == nil {
			t.Fatal("no keeper")
		}
		k.Close()
	case <-time.After(20 * time.Second):
		t.Fatal("the new directory was not noticed")
	}
}

// waitForInotify waits until this process watches a directory.
func waitForInotify(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		infos, _ := filepath.Glob("/proc/self/fdinfo/*")
		for _, name := range infos {
			if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), "inotify wd:") {
				return
			}
		}
	}
	t.Fatal("no inotify watch")
}
