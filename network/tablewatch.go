package network

import (
	"errors"
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

	mu    sync.Mutex
	watch *firewall.Watch // nil until start
	stop  chan struct{}
	wg    sync.WaitGroup
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
	if w.watch != nil {
		return
	}
	watch, err := table.Watch()
	if err != nil {
		w.log.Warn("what other programs do to the pod network's nftables table goes unnoticed", "err", err)
		return
	}
	w.watch = watch
	w.wg.Go(func() { w.follow(watch) })
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
func (w *tableWatch) follow(watch *firewall.Watch) {
	pause, again := firstRestore, false
	for {
		if !again {
			if w.waits != nil {
				w.waits()
			}
			err := watch.Wait()
			if err == nil {
				err = watch.Drain(settle)
			}
			select {
			case <-w.stop:
				return
			default:
			}
			if err != nil {
				w.log.Error("cannot follow changes of the pod network's nftables table any more", "err", errors.Join(err, watch.Close()))
				return
			}
		}
		if err := w.restore(); err != nil {
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
