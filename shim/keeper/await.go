package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Await returns when there is a keeper in dir.
func Await(ctx context.Context, dir string) (*Keeper, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("await keeper: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	// IN_ATTRIB: the socket gets its mode when it listens already.
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_ATTRIB|unix.IN_MOVED_TO|unix.IN_ONLYDIR); err != nil {
		return nil, fmt.Errorf("await keeper in %s: %w", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	for buf := make([]byte, 4096); ; {
		k, err := Dial(dir)
		if !errors.Is(err, ErrGone) {
			return k, err
		}
		if _, err := f.Read(buf); err != nil {
			return nil, fmt.Errorf("await keeper: %w", err)
		}
	}
}
