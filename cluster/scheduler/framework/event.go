package framework

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"
)

// Action is what happened to an object; a set of them in what a plugin asks for.
type Action uint32

const (
	Add Action = 1 << iota
	Delete
	UpdateNodeAllocatable
	UpdateNodeLabel
	// UpdateNodeTaint is a change of taints, or that the node became schedulable.
	UpdateNodeTaint
	UpdateNodeCondition
	UpdateNodeAnnotation
	// UpdateNodeFeatures is a change of the features that the kubelet declares.
	UpdateNodeFeatures
	UpdatePodLabel
	// UpdatePodScaleDown is that a pod requests less of something.
	UpdatePodScaleDown
	UpdatePodToleration
	// UpdatePodGatesGone is that the last scheduling gate was removed.
	UpdatePodGatesGone
	// UpdatePodClaims is that a pod was told which ResourceClaims are made for it.
	UpdatePodClaims
	// UpdateOther is an update of which nothing above is true; of all but pods and nodes, any.
	UpdateOther

	// Update is any update.
	Update = UpdateNodeAllocatable | UpdateNodeLabel | UpdateNodeTaint | UpdateNodeCondition | UpdateNodeAnnotation |
		UpdateNodeFeatures | UpdatePodLabel | UpdatePodScaleDown | UpdatePodToleration | UpdatePodGatesGone | UpdatePodClaims | UpdateOther
)

// Kind is what kind of object an event is about.
type Kind uint8

const (
	// Any is every kind; an event of it moves all pods.
	Any Kind = iota
	Pod
	// AssignedPod and UnassignedPod are the two kinds of Pod that events come for.
	AssignedPod
	UnassignedPod
	Node
	// Claim is a PersistentVolumeClaim, Volume a PersistentVolume, Class a StorageClass.
	Claim
	Volume
	Class
	// CSINode, CSIDriver, CSICapacity (CSIStorageCapacity) and Attachment (VolumeAttachment) are of
	// storage.k8s.io; ResourceClaim, ResourceSlice and DeviceClass of resource.k8s.io.
	CSINode
	CSIDriver
	CSICapacity
	Attachment
	ResourceClaim
	ResourceSlice
	DeviceClass
)

// Event is something that happened in the cluster, or a pattern of such.
type Event struct {
	Kind   Kind
	Action Action
}

// Matches says whether the pattern e includes what happened.
func (e Event) Matches(happened Event) bool {
	return (e.Kind == Any || e.Kind == happened.Kind ||
		e.Kind == Pod && (happened.Kind == AssignedPod || happened.Kind == UnassignedPod)) &&
		e.Action&happened.Action != 0
}

// EventHint is a kind of event that may help a pod which the plugin rejected.
type EventHint struct {
	Event Event
	// Hint says whether what happened may help the pod; nil means always.
	Hint Hint
}

// Hint says whether an object's change from old to new (nil for added and deleted ones) may make
// the pod fit.
type Hint func(pod *PodInfo, old, new any) bool

// OnPod returns a Hint for events of pods.
func OnPod(f func(pod *PodInfo, old, new *v1.Pod) bool) Hint { return on(f) }

// OnNode returns a Hint for events of nodes.
func OnNode(f func(pod *PodInfo, old, new *v1.Node) bool) Hint { return on(f) }

// OnClaim returns a Hint for events of PersistentVolumeClaims.
func OnClaim(f func(pod *PodInfo, old, new *v1.PersistentVolumeClaim) bool) Hint { return on(f) }

// OnVolume returns a Hint for events of PersistentVolumes.
func OnVolume(f func(pod *PodInfo, old, new *v1.PersistentVolume) bool) Hint { return on(f) }

// OnClass returns a Hint for events of StorageClasses.
func OnClass(f func(pod *PodInfo, old, new *storagev1.StorageClass) bool) Hint { return on(f) }

func on[T any](f func(pod *PodInfo, old, new *T) bool) Hint {
	return func(pod *PodInfo, before, after any) bool {
		if gone, ok := before.(cache.DeletedFinalStateUnknown); ok {
			before = gone.Obj
		}
		o, _ := before.(*T)
		n, _ := after.(*T)
		if o == nil && n == nil {
			return true // not what was asked for: better tried for nothing than forgotten
		}
		return f(pod, o, n)
	}
}

// PodChange returns what a pod's update was, as far as scheduling is concerned.
func PodChange(old, new *v1.Pod) []Event {
	kind := AssignedPod
	if new.Spec.NodeName == "" {
		kind = UnassignedPod
	}
	var events []Event
	happened := func(yes bool, a Action) {
		if yes {
			events = append(events, Event{kind, a})
		}
	}
	happened(!maps.Equal(old.Labels, new.Labels), UpdatePodLabel)
	happened(scaledDown(old, new), UpdatePodScaleDown)
	happened(len(old.Spec.SchedulingGates) != 0 && len(new.Spec.SchedulingGates) == 0, UpdatePodGatesGone)
	// Tolerations can only be added.
	happened(len(old.Spec.Tolerations) != len(new.Spec.Tolerations), UpdatePodToleration)
	happened(!slices.EqualFunc(old.Status.ResourceClaimStatuses, new.Status.ResourceClaimStatuses, sameClaim), UpdatePodClaims)
	if len(events) == 0 {
		return []Event{{kind, UpdateOther}}
	}
	return events
}

func sameClaim(a, b v1.PodResourceClaimStatus) bool { return equality.Semantic.DeepEqual(a, b) }

func scaledDown(old, new *v1.Pod) bool {
	now := Requests(new)
	for name, was := range Requests(old) {
		if is, ok := now[name]; !ok || was.Cmp(is) > 0 {
			return true
		}
	}
	return false
}

// NodeChange returns what a node's update was, as far as scheduling is concerned.
func NodeChange(old, new *v1.Node) []Event {
	var events []Event
	happened := func(yes bool, a Action) {
		if yes && !slices.Contains(events, Event{Node, a}) {
			events = append(events, Event{Node, a})
		}
	}
	happened(old.Spec.Unschedulable && !new.Spec.Unschedulable, UpdateNodeTaint)
	happened(!equality.Semantic.DeepEqual(old.Status.Allocatable, new.Status.Allocatable), UpdateNodeAllocatable)
	happened(!maps.Equal(old.Labels, new.Labels), UpdateNodeLabel)
	happened(!equality.Semantic.DeepEqual(old.Spec.Taints, new.Spec.Taints), UpdateNodeTaint)
	happened(!maps.Equal(conditions(old), conditions(new)), UpdateNodeCondition)
	happened(!maps.Equal(old.Annotations, new.Annotations), UpdateNodeAnnotation)
	happened(!slices.Equal(old.Status.DeclaredFeatures, new.Status.DeclaredFeatures), UpdateNodeFeatures)
	return events
}

func conditions(node *v1.Node) map[v1.NodeConditionType]v1.ConditionStatus {
	m := make(map[v1.NodeConditionType]v1.ConditionStatus, len(node.Status.Conditions))
	for _, c := range node.Status.Conditions {
		m[c.Type] = c.Status
	}
	return m
}
