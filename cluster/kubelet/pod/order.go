package pod

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// order has sidecars end after the regular containers, and each after the sidecars that were
// started later than it. A nil order lets everybody end at once.
type order struct {
	after map[string][]string // whom a sidecar waits for

	mu   sync.Mutex
	done map[string]chan struct{}
}

func newOrder(pod *v1.Pod, alive []*kubecontainer.Status) *order {
	o := &order{after: map[string][]string{}, done: map[string]chan struct{}{}}
	var before []string // what every sidecar that comes now waits for
	add := func(name string) {
		if slices.ContainsFunc(alive, func(s *kubecontainer.Status) bool { return s.Name == name }) {
			o.done[name] = make(chan struct{})
			before = append(before, name)
		}
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].Name)
	}
	for i := len(pod.Spec.InitContainers) - 1; i >= 0; i-- {
		if c := &pod.Spec.InitContainers[i]; podutil.IsRestartableInitContainer(c) {
			o.after[c.Name] = slices.Clone(before)
			add(c.Name)
		}
	}
	return o
}

// wait returns when it is a container's turn, or ctx ends.
func (o *order) wait(ctx context.Context, name string) {
	for _, other := range o.after[name] {
		select {
		case <-o.done[other]:
		case <-ctx.Done():
			return
		}
	}
}

// ended says that a container does not run any more. It is called once for each.
func (o *order) ended(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ch, ok := o.done[name]; ok {
		select {
		case <-ch:
		default:
			close(ch)
		}
	}
}

// hurry tells those who stop a pod's containers that the pod's grace has been shortened: by a
// second deletion, because its object is gone, or because the node evicts it. A nil hurry never
// does.
type hurry struct {
	worker *worker
	began  time.Time
	quit   chan struct{}

	mu      sync.Mutex
	by      time.Time // the deadline now; zero: the one that each began with
	changed chan struct{}
}

func newHurry(w *worker, pod *v1.Pod) *hurry {
	h := &hurry{worker: w, began: time.Now(), quit: make(chan struct{}), changed: make(chan struct{})}
	go h.watch(pod, w.eviction() != nil)
	return h
}

// watch looks at the pod's object whenever the worker is woken, on behalf of the worker's
// goroutine, which waits for the containers meanwhile.
func (h *hurry) watch(pod *v1.Pod, evicted bool) {
	for {
		select {
		case <-h.quit:
			return
		case <-h.worker.r.ctx.Done():
			return
		case <-h.worker.woke:
		}
		now, _ := h.worker.object()
		grace := now.DeletionGracePeriodSeconds
		if !evicted && h.worker.eviction() != nil {
			evicted = true
			h.bring(time.Now().Add(evictionGrace))
		}
		switch {
		case grace != nil && (pod.DeletionGracePeriodSeconds == nil || *grace < *pod.DeletionGracePeriodSeconds):
			h.bring(h.began.Add(time.Duration(*grace) * time.Second))
			pod = now
		}
	}
}

func (h *hurry) bring(by time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.by.IsZero() && h.by.Before(by) {
		return
	}
	h.by = by
	close(h.changed)
	h.changed = make(chan struct{})
}

// stop ends the watch; what woke it last is looked at by the worker again.
func (h *hurry) stop() {
	close(h.quit)
	h.worker.wake()
}

// again returns a channel that is closed when the deadline has been brought forward.
func (h *hurry) again() <-chan struct{} {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// atMost returns deadline, or the one that it was brought forward to.
func (h *hurry) atMost(deadline time.Time) time.Time {
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

// until returns a context that ends at a deadline, or when it has been brought forward to now.
func (h *hurry) until(deadline time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithDeadline(context.Background(), h.atMost(deadline))
	if h == nil {
		return ctx, cancel
	}
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
