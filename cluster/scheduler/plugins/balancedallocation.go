package plugins

import (
	"context"
	"math"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// balancedAllocation prefers nodes on which the pod brings the used parts of CPU and memory closer
// to each other.
type balancedAllocation struct{}

func (balancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// PreScore skips pods that request nothing: they would all be put on the same nodes.
func (balancedAllocation) PreScore(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo,
) *framework.Status {
	if pod.Requests.MilliCPU == 0 && pod.Requests.Memory == 0 {
		return framework.Skipped
	}
	return nil
}

func (balancedAllocation) Shape(b []byte, _ *framework.CycleState, pod *framework.PodInfo) ([]byte, bool) {
	return framework.AppendInts(b, pod.Requests.MilliCPU, pod.Requests.Memory), true
}

// Score is 75 when the pod does not change the node's balance, and up to 25 more or less when it
// does.
func (balancedAllocation) Score(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	with := balance(node.Requested.MilliCPU+pod.Requests.MilliCPU, node.Requested.Memory+pod.Requests.Memory, &node.Allocatable)
	without := balance(node.Requested.MilliCPU, node.Requested.Memory, &node.Allocatable)
	const half = framework.MaxScore / 2
	return half + (half+with-without)/2, nil
}

// balance is MaxScore when the same part of both resources is used, and less the more the parts
// differ. The standard deviation of two values is half of their difference.
func balance(milliCPU, memory int64, all *framework.Resource) int64 {
	deviation := 0.0
	if all.MilliCPU != 0 && all.Memory != 0 {
		cpu := min(float64(milliCPU)/float64(all.MilliCPU), 1)
		mem := min(float64(memory)/float64(all.Memory), 1)
		deviation = math.Abs((cpu - mem) / 2)
	}
	return int64((1 - deviation) * float64(framework.MaxScore))
}
