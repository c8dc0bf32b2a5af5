package kubelet

import (
	"cmp"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// backlog holds the pods that the API reports until it has reported all. Then they are admitted:
// first those that run, and after them the others, oldest first. In the order of the reports, a pod
// that was bound while the kubelet was down could take the place of one that runs. Mirrors of
// static pods pass at once. The zero value holds.
type backlog struct {
	mu     sync.Mutex
	isOpen bool
	pods   map[types.UID]*v1.Pod
}

// apply passes a pod or its newer state on, or holds it.
func (b *backlog) apply(p *v1.Pod, pass func(*v1.Pod)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen || kubetypes.IsMirrorPod(p) {
		pass(p)
		return
	}
	if b.pods == nil {
		b.pods = map[types.UID]*v1.Pod{}
	}
	b.pods[p.UID] = p
}

// remove passes on that a pod is gone, unless it is held.
func (b *backlog) remove(p *v1.Pod, pass func(*v1.Pod)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen || kubetypes.IsMirrorPod(p) {
		pass(p)
		return
	}
	delete(b.pods, p.UID)
}

// opened says whether all pods that the API had have been passed on.
func (b *backlog) opened() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isOpen
}

// open passes on what is held, in order, and from now on everything at once.
func (b *backlog) open(pass func(*v1.Pod)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := make([]*v1.Pod, 0, len(b.pods))
	for _, p := range b.pods {
		held = append(held, p)
	}
	slices.SortFunc(held, func(a, b *v1.Pod) int {
		return cmp.Or(pending(a)-pending(b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range held {
		pass(p)
	}
	b.isOpen, b.pods = true, nil
}

// pending is 1 for a pod that has yet to be admitted, and 0 for others.
func pending(p *v1.Pod) int {
	if admitted(p) {
		return 0
	}
	return 1
}
