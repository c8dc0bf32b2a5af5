package framework

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxWait is how long a Permit plugin can make a pod wait at most.
const maxWait = 15 * time.Minute

// WaitingPods are the pods that Permit plugins hold back.
type WaitingPods struct {
	mu   sync.Mutex
	pods map[types.UID]*WaitingPod
}

// WaitingPod is a pod that is assumed on a node and waits for Permit plugins.
type WaitingPod struct {
	Pod  *PodInfo
	Node string

	mu      sync.Mutex
	pending map[string]*time.Timer
	decided bool
	done    chan *Status // of one place, for what came first
}

// NewWaitingPods returns an empty set.
func NewWaitingPods() *WaitingPods {
	return &WaitingPods{pods: make(map[types.UID]*WaitingPod)}
}

// Add makes pod wait for the plugins in waits, at most as long as each says.
func (w *WaitingPods) Add(pod *PodInfo, node string, waits map[string]time.Duration) *WaitingPod {
	p := &WaitingPod{Pod: pod, Node: node, pending: make(map[string]*time.Timer), done: make(chan *Status, 1)}
	p.mu.Lock()
	for plugin, d := range waits {
		p.pending[plugin] = time.AfterFunc(d, func() {
			p.Reject(plugin, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", d, plugin))
		})
	}
	p.mu.Unlock()
	w.mu.Lock()
	w.pods[pod.Pod().UID] = p
	w.mu.Unlock()
	return p
}

// Get returns the waiting pod, or nil if it does not wait.
func (w *WaitingPods) Get(uid types.UID) *WaitingPod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid]
}

// Each calls f for each waiting pod.
func (w *WaitingPods) Each(f func(*WaitingPod)) {
	w.mu.Lock()
	pods := make([]*WaitingPod, 0, len(w.pods))
	for _, p := range w.pods {
		pods = append(pods, p)
	}
	w.mu.Unlock()
	for _, p := range pods {
		f(p)
	}
}

// Wait returns what becomes of p, which then no longer waits.
func (w *WaitingPods) Wait(ctx context.Context, p *WaitingPod) *Status {
	defer func() {
		w.mu.Lock()
		delete(w.pods, p.Pod.Pod().UID)
		w.mu.Unlock()
	}()
	select {
	case s := <-p.done:
		return s
	case <-ctx.Done():
		p.decide(Errored("", context.Cause(ctx)))
		return <-p.done
	}
}

// Allow says that plugin no longer holds the pod back. When none does, it goes on.
func (p *WaitingPod) Allow(plugin string) {
	p.mu.Lock()
	if t, ok := p.pending[plugin]; ok {
		t.Stop()
		delete(p.pending, plugin)
	}
	left := len(p.pending)
	p.mu.Unlock()
	if left == 0 {
		p.decide(nil)
	}
}

// Reject ends the wait: the pod does not get its place. It says whether that was still open.
func (p *WaitingPod) Reject(plugin, reason string) bool {
	return p.decide(NewStatus(Unschedulable, plugin, reason))
}

// End ends the wait with an unexpected error, after which the pod is tried again. It says whether
// that was still open.
func (p *WaitingPod) End(err error) bool { return p.decide(Errored("", err)) }

func (p *WaitingPod) decide(s *Status) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.decided {
		return false
	}
	p.decided = true
	for _, t := range p.pending {
		t.Stop()
	}
	p.done <- s
	return true
}
