package stop

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/inbox"
)

// shorterGrace tells the goroutines that stop a pod's containers when the pod's grace is shortened:
// by a second deletion, because its object is gone, or because the node evicts it. A nil
// shorterGrace never does.
type shorterGrace struct {
	ctx   context.Context // the kubelet's
	inbox *inbox.Inbox
	began time.Time
	quit  chan struct{}
	done  chan struct{} // closed when the watch has ended
	woken bool          // during the watch; read after it
	look  func()        // called when the worker is woken during the watch

	mu      sync.Mutex
	by      time.Time // the deadline now; zero: the one that each began with
	changed chan struct{}
}

func newShorterGrace(ctx context.Context, in *inbox.Inbox, pod *v1.Pod, look func()) *shorterGrace {
	h := &shorterGrace{
		ctx: ctx, inbox: in, began: time.Now(), look: look,
		quit: make(chan struct{}), changed: make(chan struct{}), done: make(chan struct{}),
	}
	go h.watch(ctx, pod, in.Eviction() != nil)
	return h
}

// watch looks at the pod's object whenever the worker is woken, on behalf of the worker's
// goroutine, which waits for the containers meanwhile.
func (h *shorterGrace) watch(ctx context.Context, pod *v1.Pod, evicted bool) {
	defer close(h.done)
	for {
		select {
		case <-h.quit:
			return
		case <-ctx.Done():
			return
		case <-h.inbox.Woke():
		}
		h.woken = true
		now, _ := h.inbox.Object()
		grace := now.DeletionGracePeriodSeconds
		if !evicted && h.inbox.Eviction() != nil {
			evicted = true
			h.bring(time.Now().Add(EvictionGrace))
		}
		switch {
		case grace != nil && (pod.DeletionGracePeriodSeconds == nil || *grace < *pod.DeletionGracePeriodSeconds):
			h.bring(h.began.Add(time.Duration(*grace) * time.Second))
			pod = now
		}
		h.look()
	}
}

func (h *shorterGrace) bring(by time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.by.IsZero() && h.by.Before(by) {
		return
	}
	h.by = by
	close(h.changed)
	h.changed = make(chan struct{})
}

// stop ends the watch. What woke it is looked at by the worker again; without that, a stop that
// failed would be tried again at once.
func (h *shorterGrace) stop() {
	close(h.quit)
	<-h.done
	if h.woken {
		h.inbox.Wake()
	}
}

// again returns a channel that is closed when the deadline has been brought forward.
func (h *shorterGrace) again() <-chan struct{} {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// atMost returns deadline, or the one that it was brought forward to.
func (h *shorterGrace) atMost(deadline time.Time) time.Time {
	if h == nil {
		return deadline
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.by.IsZero() && h.by.Before(deadline) {
		return h.by
	}
	return deadline
}

// until returns a context that ends at a deadline, or when it has been brought forward to now, or
// with the kubelet.
func (h *shorterGrace) until(deadline time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithDeadline(h.ctx, h.atMost(deadline))
	go func() {
		for {
			again := h.again()
			if !time.Now().Before(h.atMost(deadline)) {
				cancel()
			}
			select {
			case <-ctx.Done():
				return
			case <-again:
				t := time.AfterFunc(time.Until(h.atMost(deadline)), cancel)
				defer t.Stop()
			}
		}
	}()
	return ctx, cancel
}
