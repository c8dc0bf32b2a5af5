package logs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// checkEvery is how often a silent container is asked whether it still runs: its end does not show
// in the file.
const checkEvery = time.Second

// watcher tells when something may have happened to a log file.
type watcher struct {
	ctx   context.Context
	path  string
	queue *os.File // inotify
	stop  func() bool
}

// watch begins to watch the file's directory, which sees writes, renames and new files.
func watch(ctx context.Context, path string, running func(context.Context) (bool, error)) (*watcher, error) {
	if running == nil {
		return nil, errors.New("following a log needs to know whether its container runs")
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w (fs.inotify.max_user_instances may be too low)", err)
	}
	queue := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE_SELF); err != nil {
		queue.Close()
		return nil, &os.PathError{Op: "inotify", Path: filepath.Dir(path), Err: err}
	}
	stop := context.AfterFunc(ctx, func() { _ = queue.SetReadDeadline(time.Unix(1, 0)) })
	return &watcher{ctx: ctx, path: path, queue: queue, stop: stop}, nil
}

// Close ends the watch.
func (w *watcher) Close() {
	w.stop()
	w.queue.Close()
}

// wait returns when the directory has changed since the last call, or after a second.
func (w *watcher) wait() error {
	_ = w.queue.SetReadDeadline(time.Now().Add(checkEvery))
	if err := w.ctx.Err(); err != nil { // its deadline may just have been overwritten
		return err
	}
	var events [4096]byte
	_, err := w.queue.Read(events[:])
	if ctxErr := w.ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("inotify: %w", err)
	}
	return nil
}

// successor returns the file that has taken the place of f, once something was written to it: then
// its writer writes to f no more. It returns nil if there is none.
func (w *watcher) successor(f *os.File) (*os.File, error) {
	mine, err := f.Stat()
	if err != nil {
		return nil, err
	}
	next, err := os.Open(w.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // renamed, and the new one not made yet
	}
	if err != nil {
		return nil, err
	}
	info, err := next.Stat()
	if err != nil || os.SameFile(mine, info) || info.Size() == 0 {
		next.Close()
		return nil, err
	}
	return next, nil
}
