// Package source is how the kinds of PersistentVolumes, and of volumes that name their source
// themselves, are mounted: the interface between the volumes' Manager and those who mount.
package source

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Source mounts volumes of one kind for pods: those of a PersistentVolume, or of a volume that
// names its source itself.
//
// The manager has checked the volume before it calls Mount: the claim is bound, the volume is this
// claim's, this node can reach it, and no other pod has it if only one may. Calls for one volume of
// a pod come one at a time, those for different volumes or pods at once.
type Source interface {
	// Plugin is the name of upstream's plugin in the names of directories ("kubernetes.io~nfs").
	Plugin() string
	// Serves says whether the volume is of this kind.
	Serves(v *Spec) bool
	// Relabels says whether the files can be given SELinux labels, one by one. Mount has succeeded
	// before.
	Relabels(v *Spec) bool
	// Mount makes the volume usable and returns its path on the node: v.Dir, or a directory in it,
	// with the volume mounted on it, or a place or device that exists without that. It is called
	// again after it failed, and after a restart of the kubelet; what it did before is still there
	// then.
	Mount(ctx context.Context, v *Spec) (path string, err error)
	// Unmount undoes what Mount did, or began to do, from what is in m.State and m.Dir. Mounts on
	// and below m.Dir are taken away afterwards in any case, without looking at what is mounted.
	Unmount(ctx context.Context, m Mounted) error
}

// Keeper is a Source with volumes that have to be looked after while pods have them.
type Keeper interface {
	// KeepEvery is how long after it was mounted or kept a volume is kept again at the latest; 0
	// for not before its claim or PersistentVolume changes.
	KeepEvery(v *Spec) time.Duration
	// Keep looks after a mounted volume. A failure leads to another call after a back-off.
	Keep(ctx context.Context, v *Spec) error
}

// Measurer is a Source that knows what its volumes take.
type Measurer interface {
	// Usage returns the figures of a mounted volume, if they are known. It does not wait for long.
	Usage(ctx context.Context, v *Spec) (statsapi.VolumeStats, bool)
}

// Spec is a volume as one pod uses it.
type Spec struct {
	// Name is the PersistentVolume's, or the volume's own if the pod names the source. It is a
	// directory's name.
	Name string
	// PV is the PersistentVolume, or nil.
	PV *v1.PersistentVolume
	// Inline is the volume of the pod's spec.
	Inline *v1.Volume
	Pod    *v1.Pod
	// ReadOnly is that no container of the pod writes to the volume, by none of the pod's volumes
	// that are of this claim.
	ReadOnly bool
	// Block is that containers get the volume as a device.
	Block bool
	Mounted
}

// Mounted is where a volume is, for those who have nothing else of it any more.
type Mounted struct {
	// Dir is where a file system is mounted, below the pod's directory. The manager makes only its
	// parents.
	Dir string
	// State is a directory for what the source has to know later. It exists from before Mount until
	// Unmount has succeeded.
	State string
}
