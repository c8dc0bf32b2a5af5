package plugins

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// volumeBinding keeps pods waiting until their PersistentVolumeClaims are bound, and then off the
// nodes that the volumes cannot be reached from. It binds and provisions no volume itself, since
// this cluster has no controller that would complete that: to a claim whose class waits for the
// first pod (WaitForFirstConsumer) no node has a volume, until someone else has bound it.
type volumeBinding struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

var (
	errUnbound = framework.NewStatus(framework.Unresolvable, "VolumeBinding", "pod has unbound immediate PersistentVolumeClaims")
	podVolumes = framework.NewKey[*volumesOfPod]()
)

// Why a node does not do.
const (
	whyNotReachable = "node(s) didn't match PersistentVolume's node affinity"
	whyNoVolume     = "node(s) didn't find available persistent volumes to bind"
	whyVolumeGone   = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// volumesOfPod is what a pod's claims have come to.
type volumesOfPod struct {
	bound []*v1.PersistentVolume
	// gone is that the claim after those of bound is bound to a volume which does not exist.
	gone bool
	// delayed is that a claim waits for the first pod.
	delayed bool
}

func newVolumeBinding(h *framework.Handle) *volumeBinding {
	core := h.Informers.Core().V1()
	return &volumeBinding{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: h.Informers.Storage().V1().StorageClasses().Lister(),
	}
}

func (*volumeBinding) Name() string { return "VolumeBinding" }

func (pl *volumeBinding) PreFilter(_ context.Context, state *framework.CycleState, pod *framework.PodInfo) (sets.Set[string], *framework.Status) {
	claims, err := pl.usable(pod.Pod())
	if err != nil {
		return nil, framework.NewStatus(framework.Unresolvable, pl.Name(), err.Error())
	}
	if len(claims) == 0 {
		return nil, framework.Skipped
	}
	found, immediate := &volumesOfPod{}, false
	for _, claim := range claims {
		if bound(claim) {
			if err := pl.add(found, claim); err != nil {
				return nil, framework.Errored(pl.Name(), err)
			}
			continue
		}
		delayed, err := volume.IsDelayBindingMode(claim, pl.classes)
		if err != nil {
			return nil, framework.Errored(pl.Name(), err)
		}
		// Who names a volume beforehand does not wait for a pod.
		delayed = delayed && claim.Spec.VolumeName == ""
		found.delayed, immediate = found.delayed || delayed, immediate || !delayed
	}
	if immediate {
		return nil, errUnbound
	}
	podVolumes.Write(state, found)
	return nil, nil
}

// usable returns the claims of pod's volumes, or why one of them cannot be used.
func (pl *volumeBinding) usable(pod *v1.Pod) ([]*v1.PersistentVolumeClaim, error) {
	var claims []*v1.PersistentVolumeClaim
	for name, own := range allClaims(pod) {
		claim, err := pl.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
		switch {
		case own && apierrors.IsNotFound(err):
			return nil, fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case err != nil:
			return nil, err
		case claim.Status.Phase == v1.ClaimLost:
			return nil, fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			return nil, fmt.Errorf("persistentvolumeclaim %q is being deleted", name)
		}
		if own {
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return nil, err
			}
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// bound says whether binding claim to a volume is complete.
func bound(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
}

// add looks up the volume of a bound claim. After one that is gone, no other matters.
func (pl *volumeBinding) add(found *volumesOfPod, claim *v1.PersistentVolumeClaim) error {
	if found.gone {
		return nil
	}
	pv, err := pl.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		found.gone = true
		return nil
	}
	if err == nil {
		found.bound = append(found.bound, pv)
	}
	return err
}

func (pl *volumeBinding) Filter(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	found := podVolumes.Read(state)
	reachable := true
	for _, pv := range found.bound {
		// Affinity that cannot be parsed matches no node.
		reachable = reachable && volume.CheckNodeAffinity(pv, node.Node().Labels) == nil
	}
	var why []string
	if !reachable {
		why = append(why, whyNotReachable)
	}
	if found.delayed {
		why = append(why, whyNoVolume)
	}
	if reachable && found.gone {
		why = append(why, whyVolumeGone)
	}
	if len(why) == 0 {
		return nil
	}
	return framework.NewStatus(framework.Unresolvable, pl.Name(), why...)
}

func (*volumeBinding) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Class, Action: framework.Add | framework.Update},
			Hint: framework.OnClass(func(_ *framework.PodInfo, old, new *storagev1.StorageClass) bool {
				return old == nil || !equality.Semantic.DeepEqual(old.AllowedTopologies, new.AllowedTopologies)
			}),
		},
		{Event: framework.Event{Kind: framework.Claim, Action: framework.Add | framework.Update}, Hint: framework.OnClaim(claimIsNeeded)},
		{Event: framework.Event{Kind: framework.Volume, Action: framework.Add | framework.Update}},
		{Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeLabel}},
	}
}

// claimIsNeeded is the hint that a claim which came or changed is one that a volume of the pod needs.
func claimIsNeeded(pod *framework.PodInfo, _, new *v1.PersistentVolumeClaim) bool {
	p := pod.Pod()
	if new == nil || new.Namespace != p.Namespace {
		return false
	}
	for name := range allClaims(p) {
		if name == new.Name {
			return true
		}
	}
	return false
}
