package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// watchOOM gives a value for each time that the kernel kills for memory in the cgroup, and
// closes the channel when the cgroup is gone or ctx ends.
func watchOOM(ctx context.Context, paths map[string]string) (<-chan struct{}, error) {
	if dir := paths["memory"]; dir != "" {
		return watchOOMv1(ctx, dir)
	}
	dir := paths[""]
	if _, err := os.Stat(filepath.Join(dir, "memory.events")); dir == "" || err != nil {
		return nil, errors.New("watch for out of memory: the container has no memory controller")
	}
	return watchOOMv2(ctx, dir)
}

// watchOOMv1 uses the eventfd of memory.oom_control, which the kernel also writes to when
// the cgroup is removed (Documentation/admin-guide/cgroup-v1/memory.rst, section 10).
func watchOOMv1(ctx context.Context, dir string) (<-chan struct{}, error) {
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), control.Close())
	}
	event := os.NewFile(uintptr(fd), "oom-event")
	register := filepath.Join(dir, "cgroup.event_control")
	if err := os.WriteFile(register, fmt.Appendf(nil, "%d %d", fd, control.Fd()), 0); err != nil {
		return nil, errors.Join(err, event.Close(), control.Close())
	}
	out := make(chan struct{})
	go func() {
		defer close(out)
		defer control.Close()
		defer context.AfterFunc(ctx, func() { _ = event.Close() })()
		for count := make([]byte, 8); ; {
			if _, err := event.Read(count); err != nil {
				return
			}
			if _, err := os.Lstat(register); err != nil {
				_ = event.Close()
				return
			}
			select {
			case out <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// watchOOMv2 watches memory.events, in which the kernel counts, and cgroup.events, which
// says when the last process is gone (Documentation/admin-guide/cgroup-v2.rst).
func watchOOMv2(ctx context.Context, dir string) (<-chan struct{}, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	events := os.NewFile(uintptr(fd), "oom-inotify")
	for _, name := range []string{"memory.events", "cgroup.events"} {
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(dir, name), unix.IN_MODIFY); err != nil {
			return nil, errors.Join(fmt.Errorf("watch %s: %w", filepath.Join(dir, name), err), events.Close())
		}
	}
	// Read after the watch is set, so that no kill falls in between.
	seen := eventCount(dir, "memory.events", "oom_kill")
	out := make(chan struct{})
	go func() {
		defer close(out)
		defer context.AfterFunc(ctx, func() { _ = events.Close() })()
		for buf := make([]byte, 4096); ; {
			if _, err := events.Read(buf); err != nil {
				return
			}
			for now := eventCount(dir, "memory.events", "oom_kill"); seen < now; seen++ {
				select {
				case out <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
			if eventCount(dir, "cgroup.events", "populated") == 0 {
				_ = events.Close()
				return
			}
		}
	}()
	return out, nil
}

// eventCount reads one of the lines "key number" of a cgroup's file. What is not there is 0.
func eventCount(dir, file, key string) uint64 {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if value, ok := bytes.CutPrefix(line, []byte(key+" ")); ok {
			n, _ := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
			return n
		}
	}
	return 0
}
