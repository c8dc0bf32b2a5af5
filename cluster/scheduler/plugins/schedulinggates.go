package plugins

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// schedulingGates keeps pods from being tried while they have gates.
type schedulingGates struct{}

func (schedulingGates) Name() string { return "SchedulingGates" }

func (g schedulingGates) PreEnqueue(pod *v1.Pod) *framework.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	names := make([]string, len(pod.Spec.SchedulingGates))
	for i, gate := range pod.Spec.SchedulingGates {
		names[i] = gate.Name
	}
	return framework.NewStatus(framework.Unresolvable, g.Name(), fmt.Sprintf("waiting for scheduling gates: %v", names))
}

func (schedulingGates) Events() []framework.EventHint {
	return []framework.EventHint{{
		Event: framework.Event{Kind: framework.Pod, Action: framework.UpdatePodGatesGone},
		Hint:  framework.OnPod(func(pod *framework.PodInfo, _, new *v1.Pod) bool { return new != nil && new.UID == pod.Pod().UID }),
	}}
}
