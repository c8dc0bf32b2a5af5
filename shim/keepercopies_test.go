package shim

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
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
	deadline := time.After(time.Minute)
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

// A keeper that does not answer while a container is adopted holds what it held: the adoption is
// tried again. The container went on without its terminal.
func TestHungKeeperHoldsSomething(t *testing.T) {
	dir := t.TempDir()
	l, err := keeper.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	late := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			late <- err
			return
		}
		defer c.Close()
		_, err = c.Read(make([]byte, 100)) // INFO
		_, _ = c.Read(make([]byte, 100))   // the caller has given up
		late <- err
		answerOnce(l)
	}()
	h := &hold{dir: dir, log: slog.New(slog.DiscardHandler)}
	h.connect()
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	k := h.keeper()
	if k == nil {
		t.Fatal("a keeper that answers the second time is not there")
	}
	defer k.Close()
	if held, err := h.get("c/x"); !transient.Is(err) {
		t.Errorf("of a keeper that hangs: %v, %v", held, err)
	}
	h.set(nil, k.Err())
	if held, err := h.get("c/x"); !transient.Is(err) {
		t.Errorf("when it has been given up: %v, %v", held, err)
	}
	h.set(nil, keeper.ErrGone)
	if held, err := h.get("c/x"); err != nil || len(held) != 0 {
		t.Errorf("of a keeper that is gone: %v, %v", held, err)
	}
}

// answerOnce answers the first question, and no other.
func answerOnce(l net.Listener) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	b := make([]byte, 100)
	if _, err := c.Read(b); err != nil {
		return
	}
	if _, err := c.Write([]byte{byte(0x100 - int(unix.ENOSYS)), 0xff, 0xff, 0xff, 0, 0, 0, 0}); err != nil {
		return
	}
	for n := 1; n > 0 && err == nil; {
		n, err = c.Read(b)
	}
}

// A shim that cannot wait for the next keeper (no descriptor for inotify, or here no directory)
// tries again until it can. It gave up forever.
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
		case <-time.After(time.Minute):
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
	case <-time.After(time.Minute):
		t.Fatal("the new directory was not noticed")
	}
}

// waitForInotify waits until this process watches a directory.
func waitForInotify(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
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

// The keeper is replaced while a container is made, and the next one has no room for its files. The
// creation succeeded, and the container's output would have ended with the shim.
func TestNextKeeperRefusesNewContainer(t *testing.T) {
	c := newDrainRig(t)
	c.s.forget(c.id)
	next := fakeKeeper(t, func() unix.Errno { return unix.ENFILE })
	c.s.hold.set(fakeKeeper(t, func() unix.Errno {
		c.s.hold.set(next, nil)
		c.s.holdAll(nil) // as watch does with a new keeper
		return 0
	}), nil)
	if err := c.made(false); !errors.Is(err, unix.ENFILE) {
		t.Errorf("creation whose files the next keeper refuses: %v", err)
	}
	if all := c.s.all(); len(all) != 0 {
		t.Errorf("containers after a creation that failed: %d", len(all))
	}
}

// fakeKeeper connects to a keeper that answers each request to hold files with put.
func fakeKeeper(t *testing.T, put func() unix.Errno) *keeper.Keeper {
	t.Helper()
	dir := t.TempDir()
	l, err := keeper.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		for b := make([]byte, 1000); ; {
			n, _, _, _, err := c.ReadMsgUnix(b, nil)
			if err != nil || n < 4 {
				return
			}
			const opPut = 1
			answer := unix.ENOSYS
			if binary.NativeEndian.Uint32(b) == opPut {
				answer = put()
			}
			if _, err := c.Write(binary.NativeEndian.AppendUint64(nil, uint64(uint32(-int32(answer))))); err != nil {
				return
			}
		}
	}()
	k, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k.Close()
		l.Close()
		<-ended
	})
	return k
}
