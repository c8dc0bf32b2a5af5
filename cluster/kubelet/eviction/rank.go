package eviction

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1"
	v1resource "k8s.io/kubernetes/pkg/api/v1/resource"
)

// rank puts first whom to evict first. Pods of which nothing is known go before all others: they
// cannot be shown to be innocent.
func rank(pods []*v1.Pod, uses map[types.UID]*usage, short signal, shared bool) {
	// above returns by how much a pod exceeds its request, and whether it does.
	above := func(p *v1.Pod) (int64, bool) {
		u := uses[p.UID]
		switch short.resource {
		case v1.ResourceMemory:
			over := u.memory - requested(p, v1.ResourceMemory)
			return over, over > 0
		case resourceInodes: // no one can request them
			n := u.on(short, shared).inodes
			return n, n > 0
		default:
			over := u.on(short, shared).bytes - requested(p, v1.ResourceEphemeralStorage)
			return over, over > 0
		}
	}
	slices.SortStableFunc(pods, func(a, b *v1.Pod) int {
		if uses[a.UID] == nil || uses[b.UID] == nil {
			return TrueFirst(uses[a.UID] == nil, uses[b.UID] == nil)
		}
		byA, exceedsA := above(a)
		byB, exceedsB := above(b)
		return cmp.Or(
			TrueFirst(exceedsA, exceedsB),
			cmp.Compare(corev1.PodPriority(a), corev1.PodPriority(b)),
			cmp.Compare(byB, byA),
		)
	})
}

func requested(p *v1.Pod, name v1.ResourceName) int64 {
	q := v1resource.GetResourceRequestQuantity(p, name)
	return q.Value()
}

// TrueFirst orders those that have something before those that have not, as cmp.Compare does.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}
