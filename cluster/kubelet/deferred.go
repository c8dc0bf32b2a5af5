package kubelet

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/coracle-project/coracle/cluster/kubelet/eviction"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/resize"
)

// deferredResize is a resize that did not fit. When there is room, it is granted to the first in
// order: the room is kept until the pod's worker takes it.
type deferredResize struct {
	pod     *v1.Pod // as it is to be
	since   time.Time
	granted bool
}

// resize has accept called if a pod that runs can be given what its spec asks for now; see
// pod.Config.AdmitResize. Those that cannot are woken when another pod has gone or was resized.
func (a *admission) resize(p *v1.Pod, accept func()) (message string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.deferred[p.UID]
	if d == nil || !d.granted || !resize.SameResources(d.pod, p) {
		if _, message, ok = a.admitLocked(p); !ok {
			now := &deferredResize{pod: p, since: time.Now()}
			if d != nil {
				now.since = d.since
			}
			a.deferred[p.UID] = now
			return message, false
		}
	}
	accept()
	delete(a.deferred, p.UID)
	a.retryLocked()
	return "", true
}

// changedLocked forgets a resize that is not wanted any more. Its worker asks for another, if any.
func (a *admission) changedLocked(p *v1.Pod) {
	d := a.deferred[p.UID]
	if d == nil || resize.SameResources(d.pod, p) {
		return
	}
	delete(a.deferred, p.UID)
	if d.granted {
		a.retryLocked()
	}
}

// retryLocked grants deferred resizes for which there is room, in upstream's order, and has the
// workers look: those of the others tell what there is too little of now.
func (a *admission) retryLocked() {
	for _, uid := range a.orderLocked() {
		d := a.deferred[uid]
		if !d.granted {
			_, _, d.granted = a.admitLocked(d.pod)
		}
		a.wake(uid)
	}
}

// orderLocked lists deferred resizes: first those that ask for no more than before, then by the
// pods' priority, guaranteed ones before others, and last by how long they have waited.
func (a *admission) orderLocked() []types.UID {
	type rank struct {
		*deferredResize
		fits, guaranteed bool // in what it had; its QoS class
	}
	ranks := make([]rank, 0, len(a.deferred))
	for uid, d := range a.deferred {
		given, ok := a.given(uid)
		ranks = append(ranks, rank{d, !ok || !grows(given, d.pod), v1qos.GetPodQOS(d.pod) == v1.PodQOSGuaranteed})
	}
	slices.SortFunc(ranks, func(a, b rank) int {
		return cmp.Or(
			eviction.TrueFirst(a.fits, b.fits),
			cmp.Compare(corev1.PodPriority(b.pod), corev1.PodPriority(a.pod)),
			eviction.TrueFirst(a.guaranteed, b.guaranteed),
			a.since.Compare(b.since),
			cmp.Compare(a.pod.UID, b.pod.UID),
		)
	})
	order := make([]types.UID, len(ranks))
	for i, r := range ranks {
		order[i] = r.pod.UID
	}
	return order
}

// grows says whether a pod asks for more of something than it was given.
func grows(given, wanted *v1.Pod) bool {
	options := resourcehelper.PodResourcesOptions{}
	had := resourcehelper.PodRequests(given, options)
	for name, q := range resourcehelper.PodRequests(wanted, options) {
		if before := had[name]; q.Cmp(before) > 0 {
			return true
		}
	}
	return false
}
