//go:build vm

package reserve

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The Go runtime sends signals to its own threads (SIGURG, to preempt them), and fallocate(2) on
// the tmpfs of kernels such as 6.1 ends with EINTR when one arrives. The reserve is built
// nevertheless. Newer kernels end it for fatal signals only, so this runs in the guest of `make
// test-vm`, which has an older one.
func TestReserveDespiteSignals(t *testing.T) {
	const size = 32 << 20 // some milliseconds' work, with several signals in each
	dir := t.TempDir()
	ok(t, unix.Mount("test", dir, "tmpfs", 0, "size=80m"))
	defer func() { ok(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	during := func(work func()) {
		t.Helper()
		tid, done := make(chan int), make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tid <- unix.Gettid()
			work()
		}()
		worker := <-tid
		for range 200 {
			ok(t, unix.Tgkill(os.Getpid(), worker, unix.SIGURG))
			time.Sleep(100 * time.Microsecond) // the interval between two attacks
		}
		<-done
	}
	control, err := os.Create(filepath.Join(dir, "control"))
	ok(t, err)
	defer control.Close()
	during(func() { err = unix.Fallocate(int(control.Fd()), 0, 0, size) })
	if !errors.Is(err, unix.EINTR) {
		t.Fatalf("the signals did not interrupt fallocate: %v", err)
	}
	path := filepath.Join(dir, "reserve")
	during(func() { err = allocate(path, size) })
	ok(t, err)
	st, err := os.Stat(path)
	ok(t, err)
	if got := st.Size(); got != size {
		t.Errorf("allocated %d bytes of %d", got, size)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
