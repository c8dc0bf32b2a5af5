package pod

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/state"
)

// mountSized mounts a tmpfs of the given size on a directory.
func mountSized(dir, size string) error { return unix.Mount("test", dir, "tmpfs", 0, size) }

// onSmall puts the bench's state directory on its own tmpfs.
func (b *bench) onSmall(size string) {
	b.t.Helper()
	ok(b.t, mountSized(b.state, size))
	b.state = filepath.Join(b.state, "s")
	ok(b.t, os.Mkdir(b.state, 0o700))
}

// reserveOf is where the reserve of a bench's state directory is.
func reserveOf(b *bench) string { return filepath.Join(b.state, "reserve") }

// fillBytes leaves no page free.
func (b *bench) fillBytes() {
	b.t.Helper()
	path := filepath.Join(b.state, "filling")
	f := must[*os.File](b.t)(os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600))
	defer f.Close()
	size := must[os.FileInfo](b.t)(f.Stat()).Size()
	for step := int64(1 << 20); step >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, size, step); {
		case err == nil:
			size += step
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		case errors.Is(err, unix.EINTR): // tmpfs gives up at any signal
		default:
			b.t.Fatal(err)
		}
	}
}

// fillInodes leaves no inode free.
func (b *bench) fillInodes() {
	b.t.Helper()
	dir := filepath.Join(b.state, "filling")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOSPC) {
		b.t.Fatal(err)
	}
	for {
		_, err := os.MkdirTemp(dir, "")
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		ok(b.t, err)
	}
}

// An intent that cannot be written is carried out. A daemon that does not know of it finds the
// actual state, or gets the request again.
func TestIntentInMemoryOnly(t *testing.T) {
	b := newBench(t)
	b.onSmall("size=8m")
	m1, h1 := b.manager()
	podID := must[string](t)(m1.Run(t.Context(), podConfig("p")))
	id := must[string](t)(m1.Create(t.Context(), podID, containerConfig("run")))
	ok(t, m1.StartContainer(t.Context(), id))
	// The record fills its page, so the longer record of a stop does not fit.
	e := m1.containers.Exact(id)
	size := func() int { return int(must[os.FileInfo](t)(os.Stat(m1.dirs.Containers().File(id))).Size()) }
	ok(t, e.Update(func(r *state.ContainerRecord) { r.Message = strings.Repeat("x", 4096-size()-len(`"message":"",`)) }))
	if size() != 4096 {
		t.Fatalf("%d bytes", size())
	}
	ok(t, os.RemoveAll(reserveOf(b)))
	b.fillBytes()
	ok(t, m1.StopContainer(t.Context(), id, time.Hour))
	if c := must[state.Container](t)(m1.Container(id)); c.State != state.Exited || c.ExitCode != 143 {
		t.Errorf("container is %s, %d", c.State, c.ExitCode)
	}
	b.kill(h1)
	m2, _ := b.manager()
	if c := must[state.Container](t)(m2.Container(id)); c.State != state.Exited {
		t.Errorf("after a restart, container is %s, %d", c.State, c.ExitCode)
	}
	ok(t, m2.Remove(t.Context(), podID))
	idle(t, m2)
	b.nothingLeft()
}

// On a full state directory pods can be stopped and removed, but not created.
func TestFullStateDirectory(t *testing.T) {
	for _, tc := range []struct {
		name, size string
		fill       func(b *bench)
	}{
		{"no bytes", "size=8m", (*bench).fillBytes},
		{"no inodes", "size=8m,nr_inodes=200", (*bench).fillInodes},
		{"no bytes, no reserve", "size=8m", func(b *bench) {
			_ = os.RemoveAll(reserveOf(b)) // used up already
			b.fillBytes()
		}},
		{"no inodes, no reserve", "size=8m,nr_inodes=200", func(b *bench) {
			_ = os.RemoveAll(reserveOf(b)) // used up already
			b.fillInodes()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			b.onSmall(tc.size)
			var log syncLog
			m, h := b.manager(func(_ *Options, d *Deps) { d.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
			id := must[string](t)(m.Create(t.Context(), podID, containerConfig("stubborn")))
			ok(t, m.StartContainer(t.Context(), id))
			tc.fill(b)
			_, err := m.Run(t.Context(), podConfig("q"))
			if !errors.Is(err, errdefs.ErrExhausted) || !strings.Contains(err.Error(), b.state) || !strings.Contains(err.Error(), "remount") {
				t.Errorf("run: %v", err)
			}
			c := containerConfig("run")
			c.Name = "d"
			if _, err = m.Create(t.Context(), podID, c); !errors.Is(err, errdefs.ErrExhausted) {
				t.Errorf("create: %v", err)
			}
			for _, sub := range []string{"pods", "containers"} {
				if left := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(b.state, sub))); len(left) != 1 {
					t.Errorf("%s: %v", sub, left)
				}
			}
			ok(t, m.StopContainer(t.Context(), id, 10*time.Millisecond))
			if c := must[state.Container](t)(m.Container(id)); c.State != state.Exited || c.ExitCode != 137 {
				t.Errorf("container is %s, %d", c.State, c.ExitCode)
			}
			ok(t, m.Stop(t.Context(), podID))
			tc.fill(b)
			b.kill(h)
			ok(t, m.Close()) // its clean-up must not meet that of the next one
			m2, _ := b.manager()
			if c := must[state.Container](t)(m2.Container(id)); c.State != state.Exited || c.ExitCode != 137 {
				t.Errorf("after a restart, container is %s, %d", c.State, c.ExitCode)
			}
			ok(t, m2.Remove(t.Context(), podID))
			idle(t, m2)
			b.nothingLeft()
			if n := strings.Count(log.String(), "nearly full"); n != 1 {
				t.Errorf("%d warnings:\n%s", n, log.String())
			}
			ok(t, os.RemoveAll(filepath.Join(b.state, "filling")))
			m2.reserve.Check()
			kept := int64(0)
			for _, f := range must[[]os.DirEntry](t)(os.ReadDir(reserveOf(b))) {
				kept += must[os.FileInfo](t)(f.Info()).Sys().(*syscall.Stat_t).Blocks * 512
			}
			if kept != 1<<20 {
				t.Errorf("the reserve has %d bytes again", kept)
			}
			ok(t, m2.Remove(t.Context(), must[string](t)(m2.Run(t.Context(), podConfig("q")))))
			idle(t, m2)
		})
	}
}

// A daemon that starts on a full state directory keeps the reserve of the last daemon, even if it
// is incomplete, and completes it when there is space.
func TestReserveOutlivesDaemon(t *testing.T) {
	for _, tc := range []struct {
		name string
		lose func(path string) error
	}{
		{"whole", func(string) error { return nil }},
		{"part", func(path string) error { return os.Remove(filepath.Join(path, "0")) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			b.onSmall("size=8m")
			_, h1 := b.manager()
			b.kill(h1)
			ok(t, tc.lose(reserveOf(b)))
			b.fillBytes()
			m2, h2 := b.manager()
			if !m2.reserve.Free() {
				t.Error("there is no reserve to give up")
			}
			if _, err := os.Lstat(reserveOf(b)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the reserve is still there: %v", err)
			}
			ok(t, os.Remove(filepath.Join(b.state, "filling")))
			b.kill(h2)
			ok(t, os.Mkdir(reserveOf(b), 0o700)) // a part
			b.manager()
			if files := must[[]os.DirEntry](t)(os.ReadDir(reserveOf(b))); len(files) != 16 {
				t.Errorf("the reserve has %d files", len(files))
			}
		})
	}
}

// syncLog is the log of a manager, which may write to it when it counts as killed.
type syncLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *syncLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
