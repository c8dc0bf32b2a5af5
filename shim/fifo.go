package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/internal/rawfd"
)

// makeFIFO makes a named pipe that any user inside the container may open again
// (/dev/stdout does that); the directory around it is closed to all but root.
func makeFIFO(path string) error {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return fmt.Errorf("make FIFO %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // past the umask
		return fmt.Errorf("make FIFO %s: %w", path, err)
	}
	return nil
}

// openPolled opens a FIFO so that Go's poller serves it.
func openPolled(path string, mode int) (*os.File, error) {
	fd, err := openFIFO(path, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openBlocking opens a FIFO for a container's process, without waiting for the
// other side. The open file is one of its own: the flag does not spread to ours.
func openBlocking(path string, mode int) (*os.File, error) {
	fd, err := openFIFO(path, mode)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open FIFO %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openOutput opens a caller's FIFO for writing by a process. If the caller has not
// opened its side yet (containerd may do so later), both sides are held open.
func openOutput(path string) (*os.File, error) {
	f, err := openBlocking(path, unix.O_WRONLY)
	if errors.Is(err, unix.ENXIO) {
		return openBlocking(path, unix.O_RDWR)
	}
	return f, err
}

func openFIFO(path string, mode int) (int, error) {
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, fmt.Errorf("open FIFO %s: %w", path, err)
	}
	return fd, nil
}

// dupPolled is a second descriptor of f for one user, who can close it to end his own
// reads and writes.
func dupPolled(f *os.File) (*os.File, error) {
	fd, err := -1, os.ErrClosed
	rawfd.With(f, func(old int) { fd, err = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 3) })
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// awaitReader returns when someone has a FIFO open for reading, or when ctx ends. One who is about
// to open it sees a writer at once (fifo(7)); that he has others is the caller's care.
func awaitReader(ctx context.Context, path string) error {
	// The file that is meant, whatever becomes of its name.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open FIFO %s: %w", path, err)
	}
	defer unix.Close(fd)
	path = "/proc/self/fd/" + strconv.Itoa(fd)
	if w, err := openFIFO(path, unix.O_WRONLY); !errors.Is(err, unix.ENXIO) {
		return closeOpened(w, err)
	}
	opened := make(chan error, 1)
	go func() {
		w, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0) // waits
		for errors.Is(err, unix.EINTR) {
			w, err = unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		}
		opened <- closeOpened(w, err)
	}()
	select {
	case err := <-opened:
		return err
	case <-ctx.Done():
	}
	// A reader ends the wait.
	r, err := openFIFO(path, unix.O_RDONLY)
	<-opened
	return errors.Join(ctx.Err(), closeOpened(r, err))
}

// awaitReaderGone returns when no process has the FIFO f open for reading any more,
// or f is closed.
func awaitReaderGone(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0 && p[0].Revents&unix.POLLERR != 0
	})
}

func closeOpened(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
