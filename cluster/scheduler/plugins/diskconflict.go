package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// Some kinds of disks can be named by a pod itself, and be attached to a node, or written, once
// only.

var errDiskInUse = framework.NewStatus(framework.Unschedulable, "VolumeRestrictions", "node(s) had no available disk")

// namesDisk says whether pod has a volume that is such a disk.
func namesDisk(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.ISCSI != nil || v.RBD != nil {
			return true
		}
	}
	return false
}

// shareDisk says whether a and b name one disk that they cannot both use on a node.
func shareDisk(a, b *v1.Pod) bool {
	for i := range a.Spec.Volumes {
		for j := range b.Spec.Volumes {
			if sameDisk(&a.Spec.Volumes[i].VolumeSource, &b.Spec.Volumes[j].VolumeSource) {
				return true
			}
		}
	}
	return false
}

func sameDisk(a, b *v1.VolumeSource) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		a, b := a.GCEPersistentDisk, b.GCEPersistentDisk
		return a.PDName == b.PDName && !(a.ReadOnly && b.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		return a.ISCSI.IQN == b.ISCSI.IQN && !(a.ISCSI.ReadOnly && b.ISCSI.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		a, b := a.RBD, b.RBD
		return a.RBDPool == b.RBDPool && a.RBDImage == b.RBDImage && !(a.ReadOnly && b.ReadOnly) &&
			slices.ContainsFunc(a.CephMonitors, func(m string) bool { return slices.Contains(b.CephMonitors, m) })
	}
	return false
}
