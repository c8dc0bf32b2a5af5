package plugins

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/cloud-provider/volume/helpers"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// volumeZone keeps pods in the zones and regions that labels of their PersistentVolumes name.
type volumeZone struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

var (
	errZone  = framework.NewStatus(framework.Unresolvable, "VolumeZone", "node(s) had no available volume zone")
	podZones = framework.NewKey[[]zones]()

	zoneLabels = []string{v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion, v1.LabelTopologyZone, v1.LabelTopologyRegion}
	// renamed says what the beta labels are called now.
	renamed = map[string]string{v1.LabelFailureDomainBetaZone: v1.LabelTopologyZone, v1.LabelFailureDomainBetaRegion: v1.LabelTopologyRegion}
)

// zones are the values of a label that a volume can be reached from.
type zones struct {
	label  string
	values sets.Set[string]
}

func newVolumeZone(h *framework.Handle) *volumeZone {
	core := h.Informers.Core().V1()
	return &volumeZone{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: h.Informers.Storage().V1().StorageClasses().Lister(),
	}
}

func (*volumeZone) Name() string { return "VolumeZone" }

func (pl *volumeZone) PreFilter(_ context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	var all []zones
	p := pod.Pod()
	for name := range namedClaims(p) {
		claim, err := pl.claims.PersistentVolumeClaims(p.Namespace).Get(name)
		if err != nil {
			return nil, lookedUp(pl, err)
		}
		if claim.Spec.VolumeName == "" {
			if status := pl.unbound(claim); !status.OK() {
				return nil, status
			}
			continue
		}
		pv, err := pl.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			return nil, lookedUp(pl, err)
		}
		all = append(all, zonesOf(pv)...)
	}
	if len(all) == 0 {
		return nil, framework.Skipped
	}
	podZones.Write(state, all)
	return nil, nil
}

// unbound says what is wrong with a claim that has no volume yet; nothing if it waits for a pod.
func (pl *volumeZone) unbound(claim *v1.PersistentVolumeClaim) *framework.Status {
	rejected := func(why string) *framework.Status { return framework.NewStatus(framework.Unresolvable, pl.Name(), why) }
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" {
		return rejected("PersistentVolumeClaim had no pv name and storageClass name")
	}
	class, err := pl.classes.Get(name)
	switch {
	case err != nil:
		return lookedUp(pl, err)
	case class.VolumeBindingMode == nil:
		return rejected(fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", name))
	case *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return rejected("PersistentVolume had no name")
	}
	return nil
}

// zonesOf returns what pv's labels say, but for labels that cannot be parsed.
func zonesOf(pv *v1.PersistentVolume) []zones {
	var all []zones
	for _, label := range zoneLabels {
		if value, ok := pv.Labels[label]; ok {
			if values, err := helpers.LabelZonesToSet(value); err == nil {
				all = append(all, zones{label, sets.Set[string](values)})
			}
		}
	}
	return all
}

func (*volumeZone) Filter(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	labels := node.Node().Labels
	if !slices.ContainsFunc(zoneLabels, func(l string) bool { _, ok := labels[l]; return ok }) {
		return nil // the cluster has no zones
	}
	for _, z := range podZones.Read(state) {
		value, ok := labels[z.label]
		if !ok {
			value, ok = labels[renamed[z.label]]
		}
		if !ok || !z.values.Has(value) {
			return errZone
		}
	}
	return nil
}

func (*volumeZone) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Class, Action: framework.Add},
			Hint: framework.OnClass(func(_ *framework.PodInfo, _, new *storagev1.StorageClass) bool {
				return new.VolumeBindingMode != nil && *new.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
			}),
		},
		{Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeLabel}},
		{Event: framework.Event{Kind: framework.Claim, Action: framework.Add | framework.Update}, Hint: framework.OnClaim(claimIsNamed)},
		{
			Event: framework.Event{Kind: framework.Volume, Action: framework.Add | framework.Update},
			Hint: framework.OnVolume(func(_ *framework.PodInfo, old, new *v1.PersistentVolume) bool {
				return old == nil || !slices.EqualFunc(zonesOf(old), zonesOf(new), func(a, b zones) bool {
					return a.label == b.label && a.values.Equal(b.values)
				})
			}),
		},
	}
}
