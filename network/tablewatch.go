package network

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coracle-project/coracle/network/firewall"
)

const (
	// settle is how long changes are collected before the table is restored.
	settle = 50 * time.Millisecond
	// firstRestore is the pause after the table was restored, and lastRestore the longest one, after
	// failures.
	firstRestore = time.Second
	lastRestore  = time.Minute
)

// tableWatch restores the table of the pods' network when another program has changed it. A restart
// of the host's own firewall flushes all tables: without ours, pods reach nothing beyond the host,
// and can send with any address.
type tableWatch struct {
	log     *slog.Logger
	restore func() error
	// waits, if set by a test, is called before each wait for a change.
	waits func()

	mu      sync.Mutex
	started bool
	watch   *firewall.Watch // nil before start, and after an error
	stop    chan struct{}
	wg      sync.WaitGroup
}

func newTableWatch(log *slog.Logger, restore func() error) *tableWatch {
	return &tableWatch{log: log, restore: restore, stop: make(chan struct{})}
}

// start starts to watch, unless it has started.
func (w *tableWatch) start(table *firewall.Table) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.stop:
		return
	default:
	}
	if w.started {
		return
	}
	w.started = true
	if err := w.renewLocked(table); err != nil {
		w.log.Warn("what other programs do to the pod network's nftables table goes unnoticed for now", "err", err)
	}
	w.wg.Go(func() { w.follow(table) })
}

// renewLocked watches the table, if nothing does.
func (w *tableWatch) renewLocked(table *firewall.Table) (err error) {
	if w.watch == nil {
		w.watch, err = table.Watch()
	}
	return err
}

func (w *tableWatch) close() {
	w.mu.Lock()
	select {
	case <-w.stop:
		w.mu.Unlock()
		return
	default:
	}
	close(w.stop)
	if w.watch != nil {
		if err := w.watch.Close(); err != nil {
			w.log.Warn("close the watch of the pod network's nftables table", "err", err)
		}
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// follow runs until close.
func (w *tableWatch) follow(table *firewall.Table) {
	pause, again := firstRestore, false
	for {
		err := w.next(table, again)
		select {
		case <-w.stop:
			return
		default:
		}
		if err == nil {
			err = w.restore()
		}
		if err != nil {
			w.log.Error("cannot restore the pod network's nftables table", "err", err)
			pause, again = min(2*pause, lastRestore), true
		} else {
			pause, again = firstRestore, false
		}
		select {
		case <-w.stop:
			return
		case <-time.After(pause):
		}
	}
}

// next returns when the table is to be restored: when another program has changed it or, after a
// failure, as soon as it is watched again, since it may have changed unseen.
func (w *tableWatch) next(table *firewall.Table, again bool) error {
	w.mu.Lock()
	select {
	case <-w.stop:
		w.mu.Unlock()
		return nil
	default:
	}
	err := w.renewLocked(table)
	watch := w.watch
	w.mu.Unlock()
	if err != nil || again {
		return err
	}
	if w.waits != nil {
		w.waits()
	}
	err = watch.Wait()
	if err == nil {
		err = watch.Drain(settle)
	}
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.stop: // close has ended it
		return nil
	default:
	}
	w.watch = nil
	return fmt.Errorf("follow its changes: %w", errors.Join(err, watch.Close()))
}

// restoreTable makes the table again after another program changed it.
func (b *builtin) restoreTable() error {
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host == nil {
		return nil
	}
	b.log.Warn("another program changed the pod network's nftables table, or may have; restoring it", "network", b.name)
	return b.redressLocked(func(*host) {})
}
