package registration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a registrar's socket, from when it is seen until it is gone.
type socket struct {
	path string
	// born tells it from another of the same name.
	born born
	end  context.CancelFunc
	// driver is what it has registered, nil before that. Registry.mu guards it.
	driver *driver
}

type born struct {
	inode uint64
	time  unix.Timespec
}

// Dir is the directory of the registrars' sockets.
func (r *Registry) Dir() string { return filepath.Join(r.opts.RootDir, "plugins_registry") }

// watchSockets registers what has a socket in plugins_registry, until ctx ends. If it cannot watch
// the directory, it looks from time to time.
func (r *Registry) watchSockets(ctx context.Context) {
	for wait := time.Second; ctx.Err() == nil; wait = min(2*wait, lastTry) {
		began := time.Now()
		err := r.followSockets(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastTry {
			wait = time.Second
		}
		r.opts.Log.Warn("csi: drivers that start now are seen late", "dir", r.Dir(), "err", err)
		if err := r.lookForSockets(ctx); err != nil {
			r.opts.Log.Warn("csi: drivers' sockets cannot be listed", "dir", r.Dir(), "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

var errWatchEnded = errors.New("the directory was removed or moved away")

// followSockets looks whenever the directory changes.
func (r *Registry) followSockets(ctx context.Context) error {
	if err := os.MkdirAll(r.Dir(), 0o750); err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w (fs.inotify.max_user_instances may be too low)", err)
	}
	queue := os.NewFile(uintptr(fd), "inotify")
	defer queue.Close()
	// The directory above, too: one that was removed tells of it only when the last socket in it is
	// closed, and drivers hold theirs open.
	const wanted = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
		unix.IN_ONLYDIR
	var watched unix.Stat_t
	if err := unix.Stat(r.Dir(), &watched); err != nil {
		return &os.PathError{Op: "stat", Path: r.Dir(), Err: err}
	}
	for _, dir := range []string{r.opts.RootDir, r.Dir()} {
		if _, err := unix.InotifyAddWatch(fd, dir, wanted); err != nil {
			return &os.PathError{Op: "inotify", Path: dir, Err: err}
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = queue.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var events [4096]byte
	for {
		var now unix.Stat_t
		if err := unix.Stat(r.Dir(), &now); err != nil || now.Ino != watched.Ino || now.Dev != watched.Dev {
			return errWatchEnded
		}
		if err := r.lookForSockets(ctx); err != nil {
			return err
		}
		read, err := queue.Read(events[:])
		if err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		if watchEnded(events[:read]) {
			return errWatchEnded
		}
	}
}

// watchEnded says whether the events tell that the directory is not watched any more: another one
// of its name may exist already.
func watchEnded(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0 {
			return true
		}
		events = events[min(len(events), unix.SizeofInotifyEvent+int(size)):]
	}
	return false
}

// lookForSockets compares the directory with what is known: sockets that are new are registered,
// drivers of those that are gone are forgotten.
func (r *Registry) lookForSockets(ctx context.Context) error {
	found, err := r.findSockets()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, s := range r.sockets {
		if b, is := found[name]; !is || b != s.born {
			s.end()
			delete(r.sockets, name)
			r.deregisterLocked(s)
		}
	}
	for name, b := range found {
		if r.sockets[name] != nil {
			continue
		}
		life, end := context.WithCancel(ctx)
		s := &socket{path: filepath.Join(r.Dir(), name), born: b, end: end}
		if !r.opts.Work.Start(func(context.Context) { r.register(life, s) }) {
			end()
			return nil
		}
		r.sockets[name] = s
	}
	return nil
}

func (r *Registry) findSockets() (map[string]born, error) {
	dir, err := os.Open(r.Dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	list, err := dir.Readdirnames(16 * mostSockets)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	found := map[string]born{}
	for _, name := range list {
		var s unix.Stat_t
		if strings.HasPrefix(name, ".") || unix.Fstatat(int(dir.Fd()), name, &s, unix.AT_SYMLINK_NOFOLLOW) != nil ||
			s.Mode&unix.S_IFMT != unix.S_IFSOCK {
			continue
		}
		if len(found) == mostSockets {
			r.opts.Log.Warn("csi: too many sockets, some are not looked at", "dir", r.Dir(), "most", mostSockets)
			break
		}
		found[name] = born{inode: s.Ino, time: s.Ctim}
	}
	return found, nil
}
