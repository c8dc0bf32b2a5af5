package e2e

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/kubelet/eviction"
)

func TestAPodThatTakesTooMuchStorageIsEvicted(t *testing.T) {
	n := newNode(t, func(o *kubelet.Options) { o.Eviction.LimitsEvery = 200 * time.Millisecond })
	modest := n.pod("modest", container("c", "copy", "/guest", "/shared/copy", ",", "sleep"))
	emptyDir(modest).Spec.Volumes[0].EmptyDir.SizeLimit = ptr.To(quantity("1Gi"))
	modest = n.create(modest)
	volume := n.pod("volume", container("c", "copy", "/guest", "/shared/copy", ",", "sleep"))
	emptyDir(volume).Spec.Volumes[0].EmptyDir.SizeLimit = ptr.To(quantity("1Mi"))
	volume = n.create(volume)
	layer := n.pod("layer", container("c", "copy", "/guest", "/copy", ",", "sleep"))
	layer.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: quantity("1Mi")}
	layer = n.create(layer)
	for p, why := range map[*v1.Pod]string{
		volume: `Usage of EmptyDir volume "shared" exceeds the limit "1Mi". `,
		layer:  "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
	} {
		now := n.until(p, "failed", phase(v1.PodFailed))
		if now.Status.Reason != "Evicted" || now.Status.Message != why {
			t.Errorf("%s: %s", now.Status.Reason, now.Status.Message)
		}
		n.untilEvent(p, "Warning Evicted "+why)
	}
	n.until(modest, "ready", ready)
}

func TestANodeWithoutMemoryEvictsAndTakesNoMore(t *testing.T) {
	n := newNode(t, func(o *kubelet.Options) {
		// More than any machine has: every node is short of it.
		o.Eviction = eviction.Policy{Every: time.Second, Hard: map[evictionapi.Signal]evictionapi.ThresholdValue{
			evictionapi.SignalMemoryAvailable: {Percentage: 1},
		}}
	})
	requests := func(p *v1.Pod) *v1.Pod { // a pod without a request is refused
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: quantity("1Mi")}
		return p
	}
	p := n.create(requests(n.pod("greedy", container("c", "sleep"))))
	now := n.until(p, "failed", phase(v1.PodFailed))
	if now.Status.Reason != "Evicted" {
		t.Errorf("%s: %s", now.Status.Reason, now.Status.Message)
	}
	disruption := false
	for _, c := range now.Status.Conditions {
		disruption = disruption || c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "TerminationByKubelet"
	}
	if !disruption {
		t.Errorf("no DisruptionTarget: %s", describe(now))
	}
	refused := n.until(n.create(n.pod("late", container("c", "sleep"))), "failed", phase(v1.PodFailed))
	if want := "Pod was rejected: The node had condition: [MemoryPressure]. "; refused.Status.Reason != "Evicted" ||
		refused.Status.Message != want {
		t.Errorf("%s: %s", refused.Status.Reason, refused.Status.Message)
	}
}
