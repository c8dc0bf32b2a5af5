//go:build faults

package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hangTick is how often a hang that a file has armed checks whether it is over.
const hangTick = 5 * time.Millisecond

// act performs the fault. It panics if an action is unknown or fails: a test must not pass without
// its fault.
func (f armedFault) act(ctx context.Context, name string) error {
	verb, object, _ := strings.Cut(f.action, ":")
	var err error
	switch verb {
	case "error":
		return fmt.Errorf("%w at %s", ErrInjected, name)
	case "hang":
		if err := f.hang(ctx); err != nil {
			return fmt.Errorf("%w at %s: %w", ErrInjected, name, err)
		}
		return nil
	case "kill":
		if object == "" {
			object = strconv.Itoa(os.Getpid())
		}
		err = kill(strings.Split(object, "+"))
	case "fill":
		err = f.stays(fill(object))
	case "emfile":
		err = f.stays(exhaust())
	default:
		err = errors.New("unknown action")
	}
	if err != nil {
		panic(fmt.Sprintf("fault point %s: %s: %v", name, f.action, err))
	}
	return nil
}

// stays records that a fault has happened, if err is nil.
func (f armedFault) stays(err error) error {
	if err != nil || f.done == nil {
		return err
	}
	return f.done()
}

func (f armedFault) hang(ctx context.Context) error {
	if f.lasts == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	tick := time.NewTicker(hangTick)
	defer tick.Stop()
	for f.lasts() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// kill kills processes, this process last.
func kill(pids []string) error {
	self := strconv.Itoa(os.Getpid())
	for _, s := range pids {
		pid, err := strconv.Atoi(s)
		if err != nil || pid <= 1 {
			return fmt.Errorf("%q is not a process id", s)
		}
		if s == self {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill %d: %w", pid, err)
		}
	}
	if !slices.Contains(pids, self) {
		return nil
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {} // the signal is on its way
}

// fill fills the file system of a directory.
func fill(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, FillName), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var at int64
	for size := int64(1) << 40; size >= 512; {
		switch err := unix.Fallocate(int(f.Fd()), 0, at, size); {
		case err == nil:
			at += size
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EFBIG):
			size /= 2
		case errors.Is(err, unix.EINTR):
		default:
			return fmt.Errorf("fill %s: %w", dir, err)
		}
	}
	return nil
}

// exhaust sets the limit of open files to the lowest free descriptor. It does not use
// unix.Setrlimit or unix.Prlimit: with these, programs started by this process would get the limit
// too.
func exhaust() error {
	lowest, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EMFILE) {
		return nil
	}
	if err != nil {
		return err
	}
	_ = unix.Close(lowest)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = uint64(lowest)
	_, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
