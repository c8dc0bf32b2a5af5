package stop

import (
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// order has sidecars end after the regular containers, and each after the sidecars that were
// started later than it. Without an order (nil) all end at once.
type order struct {
	after map[string][]string // the containers that a sidecar waits for

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
