package keeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Await returns when a keeper in dir answers. It fails only when ctx ends. It reports every other
// failure (no free descriptor, dir does not exist, the keeper is hung) to failed, and tries again
// after a growing pause.
func Await(ctx context.Context, dir string, failed func(error)) (*Keeper, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		k, err := await(ctx, dir)
		if err == nil {
			return k, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("await keeper: %w", ctx.Err())
		}
		failed(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("await keeper: %w", ctx.Err())
		}
	}
}

const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// await returns when there is a keeper in dir, or on the first failure.
func await(ctx context.Context, dir string) (*Keeper, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("await keeper: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	// IN_ATTRIB: the socket gets its mode when it listens already.
	const events = unix.IN_CREATE | unix.IN_ATTRIB | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	if _, err := unix.InotifyAddWatch(fd, dir, events|unix.IN_ONLYDIR); err != nil {
		return nil, fmt.Errorf("await keeper in %s: %w", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	for buf := make([]byte, 4096); ; {
		k, err := Dial(dir)
		if !errors.Is(err, ErrGone) {
			return k, err
		}
		n, err := f.Read(buf)
		if err != nil {
			return nil, fmt.Errorf("await keeper in %s: %w", dir, err)
		}
		if moved(buf[:n]) {
			return nil, fmt.Errorf("await keeper in %s: the directory was removed or renamed", dir)
		}
	}
}

// moved reports whether inotify events say that the directory was removed or renamed.
func moved(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(events[4:])
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0 {
			return true
		}
		events = events[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(events[12:]):]
	}
	return false
}
