package preemption

import (
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// VictimsOn lets tests ask about one node.
func (pl *Plugin) VictimsOn(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo,
	budgets []*policyv1.PodDisruptionBudget,
) ([]*v1.Pod, int, *framework.Status) {
	c, status := pl.victims(state, pod, node, budgets)
	return c.victims, c.violations, status
}

// PickOf lets tests ask which of nodes with victims hurts least.
func PickOf(victims map[string][]*v1.Pod, violations map[string]int) string {
	var candidates []candidate
	for node, pods := range victims {
		candidates = append(candidates, candidate{node, pods, violations[node]})
	}
	return pick(candidates).node
}
