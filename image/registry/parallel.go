package registry

import (
	"context"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
)

// A blob of at least parallelMin bytes is fetched in parts, up to parallelMost at the same
// time: one connection is often slower than the line. Parts are small next to the blob and
// taken from its start on, because what reads behind wants bytes in order.
const (
	parallelMin  = 64 << 20
	parallelPart = 16 << 20
	parallelMost = 4
)

// parallel fetches a large blob. The first request asks for the first part only: if the
// server sends the whole instead, it does not know ranges, and all of it is taken from
// that answer.
func (t *transfer) parallel(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	w := &window{t: t, g: g, ctx: ctx}
	w.more.L = &w.mu
	defer context.AfterFunc(ctx, w.wake)()
	g.Go(w.hash)
	g.Go(func() error {
		for p := w.claim(); p != nil; p = w.claim() {
			if err := t.fetch(ctx, &p.span); err != nil {
				return err
			}
			w.recruit()
		}
		return nil
	})
	return g.Wait()
}

// window is the parts of a blob, those that are there and those under way.
type window struct {
	t   *transfer
	g   *errgroup.Group
	ctx context.Context

	mu      sync.Mutex
	more    sync.Cond // whole has risen, or ctx has ended
	whole   int64     // up to here nothing is missing
	next    int64     // from here on nothing is claimed
	open    []*part   // from whole on, without gaps
	helpers int
}

// part is a span whose progress moves the window.
type part struct {
	span
	w   *window
	got int64 // what is written, guarded by window.mu
}

// claim takes the next part; nil if none is left.
func (w *window) claim() *part {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claimLocked()
}

func (w *window) claimLocked() *part {
	if w.next >= w.t.d.Size {
		return nil
	}
	p := &part{w: w}
	p.at, p.end = w.next, min(w.next+parallelPart, w.t.d.Size)
	p.write, p.answered = p.store, p.told
	w.next = p.end
	w.open = append(w.open, p)
	return p
}

// told learns whether the server knows ranges. If so, others may help; if not, and no one
// does yet, this part is all.
func (p *part) told(ranged bool) error {
	if ranged {
		p.w.recruit()
		return nil
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.next == p.end {
		p.end, p.w.next = p.w.t.d.Size, p.w.t.d.Size
	}
	return nil
}

// recruit starts helpers while there are slots that no one else wants. Each fetches one
// part and gives its slot back, so that another blob waits for no more than that.
func (w *window) recruit() {
	for {
		release := w.t.r.client.slots.tryTake(w.t.r.domain)
		if release == nil {
			return
		}
		w.mu.Lock()
		var p *part
		if w.helpers < parallelMost-1 {
			p = w.claimLocked()
		}
		if p == nil {
			w.mu.Unlock()
			release()
			return
		}
		w.helpers++
		w.mu.Unlock()
		w.g.Go(func() error {
			err := w.t.fetch(w.ctx, &p.span)
			release()
			w.mu.Lock()
			w.helpers--
			w.mu.Unlock()
			if err == nil {
				w.recruit()
			}
			return err
		})
	}
}

// store is a part's write.
func (p *part) store(at int64, b []byte) error {
	if _, err := p.w.t.f.WriteAt(b, at); err != nil {
		return err
	}
	w := p.w
	w.mu.Lock()
	p.got = at + int64(len(b))
	w.advanceLocked()
	w.mu.Unlock()
	return nil
}

// wake ends waiting when ctx has ended. The lock is for a waiter that has just looked.
func (w *window) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.more.Broadcast()
}

// advanceLocked moves whole over the parts that are there.
func (w *window) advanceLocked() {
	before := w.whole
	for len(w.open) > 0 {
		w.whole = max(w.whole, w.open[0].got)
		if w.open[0].got < w.open[0].end {
			break
		}
		w.open = w.open[1:]
	}
	if w.whole > before {
		w.t.f.Arrived(w.whole)
		w.more.Broadcast()
	}
}

// hash reads behind: parts come out of order, and a hash cannot.
func (w *window) hash() error {
	buf := make([]byte, copyBuffer)
	for at := int64(0); at < w.t.d.Size; {
		whole, err := w.wait(at)
		if err != nil {
			return err
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{w.t.hash}, io.NewSectionReader(w.t.f, at, whole-at), buf)
		at += n
		if err != nil {
			return fmt.Errorf("store blob %s: %w", w.t.d.Digest, err)
		}
	}
	return nil
}

// wait blocks until there is something after at.
func (w *window) wait(at int64) (whole int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.whole <= at {
		if w.ctx.Err() != nil {
			return 0, w.ctx.Err()
		}
		w.more.Wait()
	}
	return w.whole, nil
}
