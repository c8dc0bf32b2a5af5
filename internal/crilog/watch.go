package crilog

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watcher tells that something has happened in a directory. One watch of the directory sees both
// what is written to its files and that one is renamed or made; what it does not say is which:
// a reader that is woken looks.
type watcher struct {
	file    *os.File
	changed chan struct{} // holds at most one
	done    chan struct{} // closed when the watch has ended
	err     error         // why, once done is closed
}

func watch(dir string) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w; raise fs.inotify.max_user_instances if it is used up", err)
	}
	// Nonblocking, so that reads wait in the netpoller and Close ends them.
	w := &watcher{file: os.NewFile(uintptr(fd), "inotify"), changed: make(chan struct{}, 1), done: make(chan struct{})}
	const mask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), w.file.Close())
	}
	go w.read()
	return w, nil
}

// read ends when the file is closed, or cannot be read.
func (w *watcher) read() {
	defer close(w.done)
	var events [4096]byte
	for {
		if _, err := w.file.Read(events[:]); err != nil {
			w.err = fmt.Errorf("watch for changes: %w", err)
			return
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

func (w *watcher) close() {
	_ = w.file.Close()
	<-w.done
}
