package queue

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// nominations are which pods wait for room on which node. byNode is replaced, never changed, since
// scheduling cycles read it.
type nominations struct {
	current func(pod *v1.Pod) *v1.Pod
	byNode  framework.Nominations
	nodeOf  map[types.UID]string
}

// Nominate nominates pod to node, before the API server knows; nil means the node that its status
// says, if any, and "" takes a nomination away.
func (q *Queue) Nominate(pod *framework.PodInfo, node *string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nominateLocked(pod, node)
}

// Unnominate takes pod's nomination away.
func (q *Queue) Unnominate(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unnominateLocked(uid)
}

// Nominations returns who is nominated at this moment.
func (q *Queue) Nominations() framework.Nominations {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.byNode
}

func (n *nominations) nominateLocked(pod *framework.PodInfo, node *string) {
	p := pod.Pod()
	n.unnominateLocked(p.UID)
	to := p.Status.NominatedNodeName
	if node != nil {
		to = *node
	}
	if to == "" {
		return
	}
	if current := n.current(p); current == nil || current.Spec.NodeName != "" {
		return
	}
	byNode := maps.Clone(n.byNode)
	if byNode == nil {
		byNode, n.nodeOf = make(framework.Nominations), make(map[types.UID]string)
	}
	byNode[to] = append(slices.Clone(byNode[to]), pod)
	n.byNode = byNode
	n.nodeOf[p.UID] = to
}

func (n *nominations) unnominateLocked(uid types.UID) {
	node, ok := n.nodeOf[uid]
	if !ok {
		return
	}
	delete(n.nodeOf, uid)
	byNode := maps.Clone(n.byNode)
	left := slices.DeleteFunc(slices.Clone(byNode[node]), func(p *framework.PodInfo) bool { return p.Pod().UID == uid })
	if byNode[node] = left; len(left) == 0 {
		delete(byNode, node)
	}
	n.byNode = byNode
}

// renominateLocked keeps pod's nomination over an update of it. One that the API server does not
// know of yet must survive an update that came before it.
func (n *nominations) renominateLocked(old *v1.Pod, pod *framework.PodInfo) {
	if old.Status.NominatedNodeName == "" && pod.Pod().Status.NominatedNodeName == "" {
		if node, ok := n.nodeOf[old.UID]; ok {
			n.nominateLocked(pod, &node)
		}
		return
	}
	n.nominateLocked(pod, nil)
}
