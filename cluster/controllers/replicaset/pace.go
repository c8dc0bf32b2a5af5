package replicaset

import (
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// pause is between two statuses that say only that some more pods are ready. Each of them costs a
// write of the ReplicaSet and one of its Deployment, while the pods' own starts need the processor.
const pause = 80 * time.Millisecond

// pace is when the status of each ReplicaSet that is not complete yet was written last. Its zero
// value is ready for use.
type pace struct {
	mu      sync.Mutex
	written map[string]time.Time
}

// left is how long a status has to wait after the last one of this key. Only one that says that
// more pods are ready, and not yet all of them, waits.
func (p *pace) left(key string, rs *appsv1.ReplicaSet, status *appsv1.ReplicaSetStatus, now time.Time) time.Duration {
	if !growing(rs, status) {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.written[key]
	if !ok || now.Before(last) { // a clock that was set back
		return 0
	}
	return pause - now.Sub(last)
}

// growing says whether status says no more than that more pods are ready, and not yet all.
func growing(rs *appsv1.ReplicaSet, status *appsv1.ReplicaSetStatus) bool {
	was := &rs.Status
	return was.ReadyReplicas < status.ReadyReplicas && was.AvailableReplicas <= status.AvailableReplicas && unfinished(rs, status) &&
		was.Replicas == status.Replicas && was.FullyLabeledReplicas == status.FullyLabeledReplicas &&
		was.ObservedGeneration == status.ObservedGeneration &&
		apiequality.Semantic.DeepEqual(was.TerminatingReplicas, status.TerminatingReplicas) &&
		apiequality.Semantic.DeepEqual(was.Conditions, status.Conditions)
}

func unfinished(rs *appsv1.ReplicaSet, status *appsv1.ReplicaSetStatus) bool {
	return status.ReadyReplicas < *rs.Spec.Replicas
}

// wrote notes that a status was written.
func (p *pace) wrote(key string, rs *appsv1.ReplicaSet, now time.Time) {
	if !unfinished(rs, &rs.Status) {
		p.forget(key)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written == nil {
		p.written = map[string]time.Time{}
	}
	p.written[key] = now
}

// forget drops what is known of a ReplicaSet that is complete or gone.
func (p *pace) forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.written, key); len(p.written) == 0 {
		p.written = nil
	}
}
