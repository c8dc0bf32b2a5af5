package plugins_test

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	upframework "k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// change returns a version of pod that differs in something that can change.
func (w *world) change(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	switch w.IntN(4) {
	case 0:
		pod.Labels = w.Pod().Labels
	case 1:
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: "k1", Operator: v1.TolerationOpExists})
		if w.IntN(2) == 0 {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists})
		}
	case 2:
		for i := range pod.Spec.Containers {
			delete(pod.Spec.Containers[i].Resources.Requests, v1.ResourceCPU)
		}
	case 3:
		pod.Status.Message = "something else"
	}
	return pod
}

// changeNode returns a version of node that differs in something.
func (w *world) changeNode(node *v1.Node) *v1.Node {
	node, other := node.DeepCopy(), w.Node()
	switch w.IntN(5) {
	case 0:
		node.Labels = other.Labels
	case 1:
		node.Spec.Taints = other.Spec.Taints
	case 2:
		node.Status.Allocatable = other.Status.Allocatable
		node.Status.Allocatable[v1.ResourcePods] = resource.MustParse("110")
	case 3:
		node.Spec.Unschedulable = !node.Spec.Unschedulable
	case 4:
		node.Status.DeclaredFeatures = other.Status.DeclaredFeatures
	}
	return node
}

// TestHintsLikeUpstream compares which changes of pods and nodes each plugin thinks may help a pod
// that it rejected.
func TestHintsLikeUpstream(t *testing.T) {
	helped := 0
	for seed := range uint64(150) {
		w := newWorld(t, seed)
		ctx, cancel := context.WithCancel(t.Context())
		w.args.Ignored, w.args.IgnoredGroups = nil, nil // upstream's hints look for what its filter ignores
		o := w.ours(ctx, t)
		up, _ := w.upstream(ctx, t)
		w.start(ctx)
		o.open(ctx)
		upHints := make(map[string][]fwk.ClusterEventWithHint)
		for _, e := range up.EnqueueExtensions() {
			hints, err := e.EventsToRegister(ctx)
			if err != nil {
				t.Fatal(err)
			}
			upHints[e.Name()] = hints
		}
		for range 20 {
			pod := w.stores(w.Pod())
			info := framework.NewPodInfo(pod)
			events, upEvents, before, after := w.happens(pod)
			for _, e := range o.profile.Enqueuers {
				hints, ok := upHints[e.Name()]
				if !ok {
					continue // stands in for one that is not compared
				}
				got := false
				for _, happened := range events {
					for _, h := range e.Events() {
						got = got || h.Event.Matches(happened) && (h.Hint == nil || h.Hint(info, before, after))
					}
				}
				want := false
				for _, happened := range upEvents {
					for _, h := range hints {
						if !upframework.MatchClusterEvents(h.Event, happened) {
							continue
						}
						hint := fwk.Queue
						if h.QueueingHintFn != nil {
							var err error
							if hint, err = h.QueueingHintFn(klog.Logger{}, pod, before, after); err != nil {
								hint = fwk.Queue
							}
						}
						want = want || hint == fwk.Queue
					}
				}
				// Upstream's does not look at namespaces' labels, nor at single terms, here.
				if more := got && !want && e.Name() == "InterPodAffinity"; got != want && !more {
					t.Fatalf("seed %d: %s says %v of %v, upstream %v of %v:\npod %+v\nold %+v\nnew %+v", seed, e.Name(), got, events, want, upEvents, pod,
						before, after)
				}
				if got {
					helped++
				}
			}
		}
		cancel()
	}
	if helped < 500 {
		t.Errorf("only %d hints said yes", helped)
	}
}

// happens returns something that happens, in our words and upstream's, perhaps to pod itself.
func (w *world) happens(pod *v1.Pod) (events []framework.Event, upEvents []fwk.ClusterEvent, before, after any) {
	node := w.Node()
	node.Status.Allocatable[v1.ResourcePods] = resource.MustParse("110")
	other := w.stores(w.PodOn(node))
	switch w.IntN(10) {
	case 0:
		return []framework.Event{{Kind: framework.Node, Action: framework.Add}}, []fwk.ClusterEvent{{Resource: fwk.Node, ActionType: fwk.Add}},
			nil, node
	case 1:
		return []framework.Event{{Kind: framework.Node, Action: framework.Delete}},
			[]fwk.ClusterEvent{{Resource: fwk.Node, ActionType: fwk.Delete}}, node, nil
	case 2:
		changed := w.changeNode(node)
		return framework.NodeChange(node, changed), upframework.NodeSchedulingPropertiesChange(changed, node), node, changed
	case 3:
		return []framework.Event{{Kind: framework.AssignedPod, Action: framework.Add}}, []fwk.ClusterEvent{upframework.EventAssignedPodAdd}, nil,
			other
	case 4:
		return []framework.Event{{Kind: framework.AssignedPod, Action: framework.Delete}}, []fwk.ClusterEvent{upframework.EventAssignedPodDelete},
			other, nil
	case 5:
		changed := w.change(other)
		return framework.PodChange(other, changed), upframework.PodSchedulingPropertiesChange(changed, other), other, changed
	case 6:
		return w.storageHappens(framework.Claim, fwk.PersistentVolumeClaim, w.claim(pod.Namespace, "claim-0"), w.claim(pod.Namespace, "claim-0"))
	case 7:
		return w.storageHappens(framework.Volume, fwk.PersistentVolume, w.volume("volume-0"), w.volume("volume-0"))
	case 8:
		return w.storageHappens(framework.Class, fwk.StorageClass, w.class(), w.class())
	}
	changed := w.change(pod)
	changed.UID = types.UID(pod.Name)
	return framework.PodChange(pod, changed), upframework.PodSchedulingPropertiesChange(changed, pod), pod, changed
}

// storageHappens has an object of storage come, or change from old to new.
func (w *world) storageHappens(kind framework.Kind, resource fwk.EventResource,
	old, new any,
) (events []framework.Event, upEvents []fwk.ClusterEvent, before, after any) {
	if w.IntN(2) == 0 {
		return []framework.Event{{Kind: kind, Action: framework.Add}}, []fwk.ClusterEvent{{Resource: resource, ActionType: fwk.Add}}, nil, new
	}
	return []framework.Event{{Kind: kind, Action: framework.UpdateOther}}, []fwk.ClusterEvent{{Resource: resource, ActionType: fwk.Update}},
		old, new
}
