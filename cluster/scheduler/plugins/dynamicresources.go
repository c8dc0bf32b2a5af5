package plugins

import (
	"context"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// dynamicResources stands in for the plugin that allocates devices to resource claims, which this
// scheduler does not do: it keeps pods with claims waiting, rather than have them start without
// their devices.
type dynamicResources struct{}

var (
	errClaims = framework.NewStatus(framework.Unresolvable, "DynamicResources", "resource claims are not allocated by this scheduler")
	noClaims  = framework.NewStatus(framework.Unschedulable, "DynamicResources", "no new claims to deallocate")
)

func (dynamicResources) Name() string { return "DynamicResources" }

func (dynamicResources) PreFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo) (sets.Set[string], *framework.Status) {
	if len(pod.Pod().Spec.ResourceClaims) > 0 {
		return nil, errClaims
	}
	return nil, nil
}

// PostFilter has nothing to take back, and says so in the words that users know.
func (dynamicResources) PostFilter(context.Context, *framework.CycleState, *framework.PodInfo, *framework.Rejections) (*string, *framework.Status) {
	return nil, noClaims
}

func (dynamicResources) Events() []framework.EventHint { return nil }
