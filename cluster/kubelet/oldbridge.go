package kubelet

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// reportPodsOnOldBridge posts an event for each pod on the bridge of an earlier release. Only
// recreating the pod moves it, and that is its owner's decision.
func reportPodsOnOldBridge(ctx context.Context, c *cri.Client, recorder record.EventRecorder, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	status, err := c.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		log.Warn("cannot look for pods on the old bridge", "err", err)
		return
	}
	var bridged []string
	list, ok := status.GetInfo()["bridged"]
	if !ok || json.Unmarshal([]byte(list), &bridged) != nil || len(bridged) == 0 {
		return
	}
	pods, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		log.Warn("cannot look for pods on the old bridge", "err", err)
		return
	}
	log.Warn("pods are on the bridge of an earlier release; recreate them", "pods", len(bridged))
	for _, p := range pods.GetItems() {
		if !slices.Contains(bridged, p.GetId()) {
			continue
		}
		m := p.GetMetadata()
		about := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: m.GetNamespace(), Name: m.GetName(), UID: types.UID(m.GetUid())}
		recorder.Event(about, v1.EventTypeWarning, "OnOldBridge",
			"The pod is on the bridge of an earlier release, where neighbours can forge addresses. Delete it, or restart what owns it, to give "+
				"it a routed link.")
	}
}
