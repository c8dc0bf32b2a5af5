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
	began time.Time
	stop  func() // ends the watch of the inbox

	mu      sync.Mutex
	by      time.Time // the deadline now; zero: the one that each began with
	changed chan struct{}
}

// newShorterGrace looks at the pod's object whenever the worker is woken, on behalf of the worker's
// goroutine, which waits for the containers meanwhile. It calls look, too.
func newShorterGrace(ctx context.Context, in *inbox.Inbox, pod *v1.Pod, look func()) *shorterGrace {
	h := &shorterGrace{ctx: ctx, began: time.Now(), changed: make(chan struct{})}
	evicted := in.Eviction() != nil
	h.stop = in.Meanwhile(0, func() {
		if !evicted && in.Eviction() != nil {
			evicted = true
			h.bring(time.Now().Add(EvictionGrace))
		}
		now, _ := in.Object()
		grace := now.DeletionGracePeriodSeconds
		if grace != nil && (pod.DeletionGracePeriodSeconds == nil || *grace < *pod.DeletionGracePeriodSeconds) {
			h.bring(h.began.Add(time.Duration(*grace) * time.Second))
			pod = now
		}
		look()
	})
	return h
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
