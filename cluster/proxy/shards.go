package proxy

import (
	"hash/maphash"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/kubernetes/pkg/proxy"
)

// shards is in how many parts a family's endpoints are: upstream's tracker looks at all Services
// that it knows for each change, and at the start the kernel works on one part while we work on the
// next.
const shards = 32

// shard has the endpoints of some Services. Handlers of informers use the tracker; everything else
// is the loop's.
type shard struct {
	tracker *upstream.EndpointsChangeTracker
	pending atomic.Bool // the tracker has something new
	all     upstream.EndpointsMap
	dirty   map[upstream.ServicePortName]bool
}

func newShard(family corev1.IPFamily, node string) *shard {
	s := &shard{all: upstream.EndpointsMap{}, dirty: map[upstream.ServicePortName]bool{}}
	s.tracker = upstream.NewEndpointsChangeTracker(family, node, nil, func(before, now upstream.EndpointsMap) {
		for _, ports := range []upstream.EndpointsMap{before, now} {
			for name := range ports {
				s.dirty[name] = true
			}
		}
	})
	return s
}

// update takes what is new, and reports whether flows of UDP may go to endpoints that are gone.
func (s *shard) update() (udp bool) {
	if !s.pending.Swap(false) {
		return false
	}
	return s.all.Update(s.tracker).ConntrackCleanupRequired
}

var shardSeed = maphash.MakeSeed()

// shard is the one of a Service.
func (t *translation) shard(service types.NamespacedName) *shard {
	return t.shards[maphash.Comparable(shardSeed, service)%uint64(len(t.shards))]
}

// endpoints are those of a port.
func (t *translation) endpoints(name upstream.ServicePortName) []upstream.Endpoint {
	return t.shard(name.NamespacedName).all[name]
}

// everything are the endpoints of all ports.
func (t *translation) everything() upstream.EndpointsMap {
	all := upstream.EndpointsMap{}
	for _, s := range t.shards {
		for name, endpoints := range s.all {
			all[name] = endpoints
		}
	}
	return all
}

// sliceChanged is for handlers of informers. It reports whether something is new for the family.
func (t *translation) sliceChanged(slice *discoveryv1.EndpointSlice, gone bool) bool {
	s := t.shard(types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]})
	if !s.tracker.EndpointSliceUpdate(slice, gone) {
		return false
	}
	s.pending.Store(true)
	return true
}
