// Package inbox is how others tell the goroutine of a pod what happens: changes of its object,
// evictions, wake-ups.
package inbox

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

// Inbox holds what has been told, newest state only. It is safe for concurrent use.
type Inbox struct {
	woke chan struct{}

	mu      sync.Mutex
	pod     *v1.Pod // newest object
	removed bool    // the object is gone
	revived *v1.Pod // applied after it was gone
	retry   bool    // something changed that a failed step may have waited for
	evicted *status.Eviction
	cancel  func() // ends what must not hold up the end of the pod: pulling, mounting
}

// New returns the inbox of a pod.
func New(pod *v1.Pod) *Inbox {
	return &Inbox{woke: make(chan struct{}, 1), pod: pod, cancel: func() {}}
}

// Wake has the pod looked at again.
func (i *Inbox) Wake() {
	select {
	case i.woke <- struct{}{}:
	default:
	}
}

// Woke returns the channel that has a value after a Wake. Wakes that no one received are one.
func (i *Inbox) Woke() <-chan struct{} { return i.woke }

// Meanwhile has look called, in a goroutine of its own, after each Wake, while the worker waits for
// something else, but not before it has waited for patience. stop ends that. If look was called,
// the Wake is repeated for the worker.
func (i *Inbox) Meanwhile(patience time.Duration, look func()) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	woken := false
	go func() {
		defer close(done)
		select {
		case <-time.After(patience):
		case <-quit:
			return
		}
		for {
			select {
			case <-i.woke:
				woken = true
				look()
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		if woken {
			i.Wake()
		}
	}
}

// Apply tells of a state of the pod's object.
func (i *Inbox) Apply(pod *v1.Pod) {
	i.mu.Lock()
	if i.removed {
		i.revived = pod
		i.mu.Unlock()
		return
	}
	i.retry = i.retry || i.pod.Generation != pod.Generation
	i.pod = pod
	if pod.DeletionTimestamp != nil || podutil.IsPodPhaseTerminal(pod.Status.Phase) {
		i.cancel()
	}
	i.mu.Unlock()
	i.Wake()
}

// Remove tells that the pod's object is gone, and its last state.
func (i *Inbox) Remove(pod *v1.Pod) {
	i.mu.Lock()
	i.pod, i.removed, i.revived = pod, true, nil
	i.cancel()
	i.mu.Unlock()
	i.Wake()
}

// Evict ends the pod with the grace of an eviction. It returns false if the node has ended it
// before.
func (i *Inbox) Evict(e status.Eviction) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.evicted != nil || i.removed || podutil.IsPodPhaseTerminal(i.pod.Status.Phase) {
		return false
	}
	i.evicted = &e
	i.cancel()
	i.Wake()
	return true
}

// Eviction returns the eviction that was told, nil if there is none.
func (i *Inbox) Eviction() *status.Eviction {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.evicted
}

// Revived returns the object that was applied after Remove, nil if there is none.
func (i *Inbox) Revived() *v1.Pod {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.revived
}

// Object returns the newest state of the pod's object, and whether the object is gone.
func (i *Inbox) Object() (pod *v1.Pod, removed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pod, i.removed
}

// Retry has the pod looked at again, and what failed tried again at once.
func (i *Inbox) Retry() {
	i.mu.Lock()
	i.retry = true
	i.mu.Unlock()
	i.Wake()
}

// TakeRetry returns whether what failed is to be tried again at once: Retry was called, or the spec
// has changed since the last TakeRetry.
func (i *Inbox) TakeRetry() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	retry := i.retry
	i.retry = false
	return retry
}

// OnEnd has cancel called when the pod is to end. It replaces the cancel of the call before.
func (i *Inbox) OnEnd(cancel func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cancel = cancel
}
