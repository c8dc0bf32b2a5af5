package plugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

func (pl *interPodAffinity) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Pod, Action: framework.Add | framework.UpdatePodLabel | framework.Delete},
			Hint:  framework.OnPod(pl.changedByPod),
		}, {
			Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeLabel},
			Hint:  framework.OnNode(changedByNode),
		},
	}
}

// changedByPod says whether a pod that came, went or changed its labels is now one to be near to,
// or no more one to keep away from.
func (pl *interPodAffinity) changedByPod(pod *framework.PodInfo, old, new *v1.Pod) bool {
	p := pod.Pod()
	if old != nil && new != nil && new.UID == p.UID {
		return true // others may not keep it away any more
	}
	if new != nil && !onNode(new) || old != nil && !onNode(old) {
		return false
	}
	affinity, err := pl.resolve(pod.RequiredAffinity)
	if err != nil {
		return true
	}
	anti, err := pl.resolve(pod.RequiredAntiAffinity)
	if err != nil {
		return true
	}
	if new != nil {
		comes := matchesAll(affinity, new) && (old == nil || !matchesAll(affinity, old))
		return comes || old != nil && matchesAny(anti, old) && !matchesAll(anti, new)
	}
	if matchesAny(anti, old) {
		return true
	}
	namespace := pl.namespaceLabels(p.Namespace)
	gone := framework.NewPodInfo(old)
	for i := range gone.RequiredAntiAffinity {
		if gone.RequiredAntiAffinity[i].Matches(p, namespace) {
			return true
		}
	}
	return false
}

func matchesAny(terms []framework.Term, pod *v1.Pod) bool {
	for i := range terms {
		if terms[i].Matches(pod, nil) {
			return true
		}
	}
	return false
}

// changedByNode says whether a node that came or changed its labels opens a domain to the pod.
func changedByNode(pod *framework.PodInfo, old, new *v1.Node) bool {
	if new == nil {
		return false
	}
	for i := range pod.RequiredAffinity {
		key := pod.RequiredAffinity[i].TopologyKey
		is, has := new.Labels[key]
		if has && (old == nil || old.Labels[key] != is) {
			return true
		}
		if _, had := labelOf(old, key); has && !had {
			return true
		}
	}
	for i := range pod.RequiredAntiAffinity {
		key := pod.RequiredAntiAffinity[i].TopologyKey
		was, had := labelOf(old, key)
		is, has := new.Labels[key]
		if old == nil || had && (!has || was != is) {
			return true
		}
	}
	return false
}

func labelOf(node *v1.Node, key string) (string, bool) {
	if node == nil {
		return "", false
	}
	value, ok := node.Labels[key]
	return value, ok
}
