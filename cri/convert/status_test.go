package convert

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestStatesSurviveTheWayBack(t *testing.T) {
	for s, wire := range states {
		f := ContainerFilter(&runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: wire}})
		if f.State != s {
			t.Errorf("%s became %s", s, f.State)
		}
	}
	if containerState("new") != runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		t.Error("a state of the future is not unknown")
	}
}
