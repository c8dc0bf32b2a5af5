package containerlog

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// attachBacklog is how many bytes an attached reader may lag behind one stream
// before it is detached.
const attachBacklog = 1 << 20

// Fanout shows a container's output to those attached. It never blocks the pump:
// each reader has a bounded backlog of its own.
type Fanout struct {
	n atomic.Int32 // readers; the pump looks only at this while there are none

	mu      sync.Mutex
	readers map[*Reader]struct{}
	closed  bool
}

// Reader is one attached FIFO.
type Reader struct {
	stream string
	f      *os.File // write end, non-blocking
	wake   chan struct{}
	gone   chan struct{} // closed when nothing more will be written to f

	mu      sync.Mutex
	backlog []byte
	last    bool // no more comes: write the backlog, then close
	lagging bool
}

func (o *Fanout) attached() bool { return o.n.Load() > 0 }

// Add starts to write stream to f, which it owns from now on.
func (o *Fanout) Add(stream string, f *os.File, log *slog.Logger) *Reader {
	r := &Reader{stream: stream, f: f, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	o.mu.Lock()
	if o.closed {
		r.last = true
	} else {
		if o.readers == nil {
			o.readers = make(map[*Reader]struct{})
		}
		o.readers[r] = struct{}{}
		o.n.Add(1)
	}
	o.mu.Unlock()
	r.nudge()
	go func() {
		defer close(r.gone)
		err := r.run()
		o.remove(r)
		f.Close()
		if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, os.ErrClosed) {
			log.Warn("attached reader dropped", "stream", stream, "err", err)
		}
	}()
	return r
}

func (o *Fanout) remove(r *Reader) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.readers[r]; ok {
		delete(o.readers, r)
		o.n.Add(-1)
	}
}

// write gives p to every reader of the stream. It copies p and does not block.
func (o *Fanout) write(stream string, p []byte) {
	if !o.attached() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := range o.readers {
		if r.stream == stream {
			r.add(p)
		}
	}
}

// Close lets every reader finish what it has and go; later ones find nothing.
func (o *Fanout) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for r := range o.readers {
		r.End()
	}
}

// Gone is closed when nothing more will be written to the FIFO.
func (r *Reader) Gone() <-chan struct{} { return r.gone }

// End lets the reader write what it has, and then go.
func (r *Reader) End() {
	r.mu.Lock()
	r.last = true
	r.mu.Unlock()
	r.nudge()
}

func (r *Reader) add(p []byte) {
	r.mu.Lock()
	if len(r.backlog)+len(p) > attachBacklog {
		r.lagging = true
		r.backlog = nil
	} else if !r.lagging {
		r.backlog = append(r.backlog, p...)
	}
	lagging := r.lagging
	r.mu.Unlock()
	if lagging {
		r.f.Close() // a write that is stuck ends
	}
	r.nudge()
}

func (r *Reader) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

var errLagging = errors.New("reader lags more than 1 MiB behind")

func (r *Reader) run() error {
	for range r.wake {
		for {
			r.mu.Lock()
			p, last, lagging := r.backlog, r.last, r.lagging
			r.backlog = nil
			r.mu.Unlock()
			if lagging {
				return errLagging
			}
			if len(p) == 0 {
				if last {
					return nil
				}
				break
			}
			if _, err := r.f.Write(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stop ends the reader at once.
func (r *Reader) Stop() {
	r.f.Close()
	r.mu.Lock()
	r.last = true
	r.backlog = nil
	r.mu.Unlock()
	r.nudge()
	<-r.gone
}
