// Package trash deletes directory trees in the background, so that removing a container does not
// wait for its files. It follows no symbolic link and looks into no mount. A failed deletion is
// repeated with growing pauses.
package trash

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Trash deletes entries of one directory, in one goroutine. Its methods may be called concurrently.
type Trash struct {
	dir   string
	mount string // see New
	log   *slog.Logger
	wake  chan struct{} // has room for one

	ctx  context.Context
	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	queue   []trashed
	started bool
}

// trashed is a directory to delete, or, with a channel, a mark in the queue: the
// channel is closed when all before it is gone.
type trashed struct {
	name string
	mark chan struct{}
}

// New returns a Trash for the entries of dir; Start starts it. Something may be mounted at an
// entry's directory named mount: it is unmounted.
func New(dir, mount string, log *slog.Logger) *Trash {
	ctx, stop := context.WithCancel(context.Background())
	return &Trash{dir: dir, mount: mount, log: log, wake: make(chan struct{}, 1), ctx: ctx, stop: stop, done: make(chan struct{})}
}

// Start starts to delete.
func (t *Trash) Start() {
	t.mu.Lock()
	t.started = true
	t.mu.Unlock()
	go t.run()
}

// Close ends the goroutine after the file it is at.
func (t *Trash) Close() {
	t.stop()
	t.mu.Lock()
	started := t.started
	t.mu.Unlock()
	if started {
		<-t.done
	}
}

// Dir is the directory whose entries are deleted.
func (t *Trash) Dir() string { return t.dir }

// NewName is one that no entry has.
func NewName() string { return rand.Text() }

// Discard moves a directory out of sight in one step, among the entries, and has it deleted. A
// missing directory is fine.
func (t *Trash) Discard(dir string) error {
	name := NewName()
	err := unix.Rename(dir, filepath.Join(t.dir, name))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("move %s to staging: %w", dir, err)
	}
	t.Delete(name)
	return nil
}

// Delete has the named directory deleted; it does not wait.
func (t *Trash) Delete(name string) { t.push(trashed{name: name}) }

// Flush waits until all that was deleted before is off the disk.
func (t *Trash) Flush(ctx context.Context) error {
	mark := make(chan struct{})
	t.push(trashed{mark: mark})
	select {
	case <-mark:
		return nil
	case <-t.ctx.Done():
		return fmt.Errorf("flush: snapshot store is closed")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Trash) push(x trashed) {
	t.mu.Lock()
	t.queue = append(t.queue, x)
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // it is awake already
	}
}

// firstRetry and lastRetry limit the pause before a failed deletion is repeated. The cause may
// pass, such as a lack of descriptors. Until then the files take space.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

func (t *Trash) run() {
	defer close(t.done)
	var (
		failed []string
		retry  <-chan time.Time
		pause  = firstRetry
	)
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.wake:
		case <-retry:
			retry = nil
			for _, name := range failed {
				t.push(trashed{name: name})
			}
			failed = nil
		}
		for {
			x, ok := t.pop()
			if !ok {
				break
			}
			if x.mark != nil {
				close(x.mark)
				continue
			}
			err := removeTree(t.ctx, t.dir, x.name, t.mount)
			if t.ctx.Err() != nil {
				return
			}
			if err != nil {
				t.log.Warn("cannot delete file; trying again later", "path", filepath.Join(t.dir, x.name), "err", err)
				failed = append(failed, x.name)
			}
		}
		switch {
		case len(failed) == 0:
			pause = firstRetry
		case retry == nil:
			retry = time.After(pause)
			pause = min(2*pause, lastRetry)
		}
	}
}

func (t *Trash) pop() (trashed, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		t.queue = nil // the array of a burst is not kept
		return trashed{}, false
	}
	x := t.queue[0]
	t.queue = t.queue[1:]
	return x, true
}
