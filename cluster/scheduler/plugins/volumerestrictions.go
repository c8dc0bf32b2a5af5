package plugins

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// volumeRestrictions keeps a claim that only one pod may use (ReadWriteOncePod) to that pod, and
// pods that write to one disk without a claim off each other's nodes (diskconflict.go).
type volumeRestrictions struct {
	claims corelisters.PersistentVolumeClaimLister
}

var (
	errClaimInUse = framework.NewStatus(framework.Unschedulable, "VolumeRestrictions",
		"node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
	exclusiveClaims = framework.NewKey[*exclusive]()
)

// exclusive are the pod's claims that no other may use, by name, and how often others do.
type exclusive struct {
	namespace string
	claims    sets.Set[string]
	uses      int
}

// Clone implements framework.Cloner.
func (e *exclusive) Clone() any { c := *e; return &c }

func (e *exclusive) count(pod *v1.Pod) (n int) {
	if pod.Namespace != e.namespace {
		return 0
	}
	for name := range namedClaims(pod) {
		if e.claims.Has(name) {
			n++
		}
	}
	return n
}

func newVolumeRestrictions(h *framework.Handle) *volumeRestrictions {
	return &volumeRestrictions{h.Informers.Core().V1().PersistentVolumeClaims().Lister()}
}

func (*volumeRestrictions) Name() string { return "VolumeRestrictions" }

func (pl *volumeRestrictions) PreFilter(_ context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	p := pod.Pod()
	var claims []string
	for name := range namedClaims(p) {
		claim, err := pl.claims.PersistentVolumeClaims(p.Namespace).Get(name)
		if err != nil {
			return nil, lookedUp(pl, err)
		}
		if slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) {
			claims = append(claims, name)
		}
	}
	disks := namesDisk(p)
	if len(claims) == 0 && !disks {
		return nil, framework.Skipped
	}
	e := &exclusive{namespace: p.Namespace, claims: sets.New(claims...)}
	if len(claims) > 0 {
		for _, n := range state.Nodes.Nodes {
			for _, other := range n.Pods {
				e.uses += e.count(other.Pod())
			}
		}
	}
	if e.uses == 0 && !disks {
		return nil, framework.Skipped
	}
	exclusiveClaims.Write(state, e)
	return nil, nil
}

// lookedUp returns the answer of pl when a lookup fails: what is not there yet may come.
func lookedUp(pl framework.Plugin, err error) *framework.Status {
	if apierrors.IsNotFound(err) {
		return framework.NewStatus(framework.Unresolvable, pl.Name(), err.Error())
	}
	return framework.Errored(pl.Name(), err)
}

// AddPod implements framework.PodChanger.
func (*volumeRestrictions) AddPod(state *framework.CycleState, _, added *framework.PodInfo, _ *framework.NodeInfo) *framework.Status {
	e := exclusiveClaims.Read(state)
	e.uses += e.count(added.Pod())
	return nil
}

// RemovePod implements framework.PodChanger.
func (*volumeRestrictions) RemovePod(state *framework.CycleState, _, removed *framework.PodInfo, _ *framework.NodeInfo) *framework.Status {
	e := exclusiveClaims.Read(state)
	e.uses -= e.count(removed.Pod())
	return nil
}

func (*volumeRestrictions) Filter(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if p := pod.Pod(); namesDisk(p) {
		for _, other := range node.Pods {
			if shareDisk(p, other.Pod()) {
				return errDiskInUse
			}
		}
	}
	if exclusiveClaims.Read(state).uses > 0 {
		return errClaimInUse
	}
	return nil
}

func (*volumeRestrictions) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Pod, Action: framework.Delete},
			Hint: framework.OnPod(func(pod *framework.PodInfo, old, _ *v1.Pod) bool {
				return old != nil && (shareClaim(pod.Pod(), old) || shareDisk(pod.Pod(), old))
			}),
		},
		{Event: framework.Event{Kind: framework.Node, Action: framework.Add}},
		{Event: framework.Event{Kind: framework.Claim, Action: framework.Add}, Hint: framework.OnClaim(claimIsNamed)},
	}
}

func shareClaim(a, b *v1.Pod) bool {
	if a.Namespace != b.Namespace {
		return false
	}
	names := sets.New(slices.Collect(namedClaims(a))...)
	for name := range namedClaims(b) {
		if names.Has(name) {
			return true
		}
	}
	return false
}
