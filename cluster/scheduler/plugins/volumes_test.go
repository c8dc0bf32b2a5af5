package plugins_test

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/scheduler/testkit"
)

// How many volumes and, in each namespace, claims there are. More are named than exist.
const (
	volumesMade = 6
	claimsMade  = 16
)

// storage returns volumes, claims and classes of all sorts. No volume is free, since upstream's
// plugin would bind it, and no class provisions any.
func (w *world) storage() []runtime.Object {
	objects := []runtime.Object{
		&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "now"}, Provisioner: volume.NotSupportedProvisioner,
			VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
		},
		&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "later"}, Provisioner: volume.NotSupportedProvisioner,
			VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "undecided"}, Provisioner: volume.NotSupportedProvisioner},
	}
	for i := range volumesMade {
		objects = append(objects, w.volume(fmt.Sprintf("volume-%d", i)))
	}
	for _, ns := range testkit.Namespaces() {
		for i := range claimsMade {
			objects = append(objects, w.claim(ns.Name, fmt.Sprintf("claim-%d", i)))
		}
	}
	return objects
}

// drivers says how many volumes the driver of all volumes attaches to a node, if it says so.
func (w *world) drivers(node string) *storagev1.CSINode {
	d := storagev1.CSINodeDriver{Name: "example.org", NodeID: node}
	if w.IntN(2) == 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(w.IntN(4)))}
	}
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{d}}}
}

func (w *world) volume(name string) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec: v1.PersistentVolumeSpec{
			Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			ClaimRef:               &v1.ObjectReference{Namespace: "else", Name: "where", UID: "x"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "example.org", VolumeHandle: name}},
		},
	}
	if w.IntN(2) == 0 {
		operator := []v1.NodeSelectorOperator{v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, "Like"}[w.IntN(3)]
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: "disk", Operator: operator, Values: []string{"ssd"}}},
		}}}}
	}
	for _, label := range []string{v1.LabelTopologyZone, v1.LabelFailureDomainBetaZone} {
		if w.IntN(4) == 0 {
			pv.Labels[label] = []string{"z1", "z1__z2", "z3", "z1____z3"}[w.IntN(4)]
		}
	}
	return pv
}

func (w *world) class() *storagev1.StorageClass {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "now"}, Provisioner: volume.NotSupportedProvisioner,
		VolumeBindingMode: []*storagev1.VolumeBindingMode{
			ptr.To(storagev1.VolumeBindingImmediate),
			ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), nil,
		}[w.IntN(3)],
	}
	if w.IntN(2) == 0 {
		class.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{
			Key:    "disk",
			Values: []string{"ssd"},
		}}}}
	}
	return class
}

// claim is bound, more often than not.
func (w *world) claim(namespace, name string) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: ptr.To([]string{"now", "later", "later", "later", "undecided", "absent", ""}[w.IntN(7)]),
			Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if w.IntN(4) == 0 {
		claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	}
	if w.IntN(4) > 0 {
		claim.Spec.VolumeName = fmt.Sprintf("volume-%d", w.IntN(volumesMade+1))
		if w.IntN(8) > 0 {
			claim.Annotations[volume.AnnBindCompleted] = "yes"
		}
	}
	if w.IntN(20) == 0 {
		claim.Status.Phase = v1.ClaimLost
	}
	if w.IntN(20) == 0 {
		claim.DeletionTimestamp = ptr.To(metav1.Unix(1_700_000_000, 0))
	}
	return claim
}

// stores gives some pods volumes that need claims.
func (w *world) stores(pod *v1.Pod) *v1.Pod {
	if w.IntN(3) > 0 {
		return pod
	}
	for i := range 1 + w.IntN(2) {
		v := v1.Volume{Name: fmt.Sprint(i)}
		if w.IntN(10) == 0 {
			v.Ephemeral = &v1.EphemeralVolumeSource{}
			if w.IntN(2) == 0 {
				pod.Name, v.Name = "claim", "0" // which is there, and not its own
			}
		} else {
			v.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("claim-%d", w.IntN(claimsMade+2))}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
	return pod
}

// disks gives some pods disks that they name themselves.
func (w *world) disks(pod *v1.Pod) *v1.Pod {
	if w.IntN(4) > 0 {
		return pod
	}
	var source v1.VolumeSource
	name, readOnly := fmt.Sprint(w.IntN(2)), w.IntN(2) == 0
	switch w.IntN(4) {
	case 0:
		source.GCEPersistentDisk = &v1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: readOnly}
	case 1:
		source.AWSElasticBlockStore = &v1.AWSElasticBlockStoreVolumeSource{VolumeID: name, ReadOnly: readOnly}
	case 2:
		source.ISCSI = &v1.ISCSIVolumeSource{IQN: name, ReadOnly: readOnly}
	case 3:
		source.RBD = &v1.RBDVolumeSource{CephMonitors: []string{name, "m"}[w.IntN(2):], RBDImage: name, ReadOnly: readOnly}
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "disk", VolumeSource: source})
	return pod
}
