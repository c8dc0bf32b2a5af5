package upstream

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/volume/persistentvolume"
	"k8s.io/kubernetes/pkg/controller/volume/pvcprotection"
	"k8s.io/kubernetes/pkg/controller/volume/pvprotection"
	"k8s.io/kubernetes/pkg/controller/volume/vacprotection"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/hostpath"
	"k8s.io/kubernetes/pkg/volume/nfs"
	"k8s.io/kubernetes/pkg/volume/util/recyclerclient"

	"github.com/coracle-project/coracle/cluster/client"
)

// Upstream's defaults (k8s.io/kubernetes/pkg/controller/volume/persistentvolume/config/v1alpha1).
const (
	bindAgain         = 15 * time.Second
	recycleNFS        = 300 // seconds at least, and
	recyclePerGigabit = 30  // seconds more for each Gi
)

// protectionWorkers is upstream's default for the controllers that protect storage objects.
const protectionWorkers = 1

// NewVolumeBinder returns the controller that binds claims to volumes, asks provisioners for
// volumes, and reclaims volumes whose claims are gone. What external provisioners have made is
// theirs to delete.
func NewVolumeBinder(set *client.Set) *OnDemand {
	claims, volumes := set.Informers.Core().V1().PersistentVolumeClaims().Informer(), set.Informers.Core().V1().PersistentVolumes().Informer()
	return &OnDemand{
		name: "persistentvolume-binder", log: set.Logger(), informers: set.Informers,
		trigger: claims, also: []cache.SharedIndexInformer{volumes},
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			core := in.Core().V1()
			c, err := persistentvolume.NewController(ctx, persistentvolume.ControllerParameters{
				KubeClient: set.Kube, SyncPeriod: bindAgain, VolumePlugins: volumePlugins(), EnableDynamicProvisioning: true,
				VolumeInformer: core.PersistentVolumes(), ClaimInformer: core.PersistentVolumeClaims(), PodInformer: core.Pods(),
				NodeInformer: core.Nodes(), ClassInformer: in.Storage().V1().StorageClasses(),
			})
			if err != nil {
				return nil, err
			}
			return c.Run, nil
		},
	}
}

// volumePlugins are those of upstream's volume sources that the binder itself recycles or deletes.
func volumePlugins() []volume.VolumePlugin {
	config := func(least int) volume.VolumeConfig {
		return volume.VolumeConfig{
			RecyclerMinimumTimeout: least, RecyclerTimeoutIncrement: recyclePerGigabit,
			RecyclerPodTemplate: volume.NewPersistentVolumeRecyclerPodTemplate(),
		}
	}
	return append([]volume.VolumePlugin{keptHostPaths{hostpath.ProbeVolumePlugins(volume.VolumeConfig{})[0]}},
		nfs.ProbeVolumePlugins(config(recycleNFS))...)
}

// keptHostPaths deletes nothing. Upstream's plugin, meant for tests, removes whatever path has
// /tmp/ in it, as root, and across mounts. A binder that gets an error makes the volume Failed and
// says why in an Event.
type keptHostPaths struct{ volume.VolumePlugin }

func (keptHostPaths) NewDeleter(_ klog.Logger, spec *volume.Spec) (volume.Deleter, error) {
	return nil, kept(spec)
}

func (keptHostPaths) Recycle(_ string, spec *volume.Spec, _ recyclerclient.RecycleEventRecorder) error {
	return kept(spec)
}

func kept(spec *volume.Spec) error {
	return fmt.Errorf("paths of the host are not deleted here: remove what is in %s yourself, and delete the PersistentVolume",
		spec.PersistentVolume.Spec.HostPath.Path)
}

// NewClaimProtection returns the controller that keeps a claim that is being deleted until no pod
// uses it.
func NewClaimProtection(set *client.Set) *OnDemand {
	return &OnDemand{
		name: "persistentvolumeclaim-protection", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Core().V1().PersistentVolumeClaims().Informer(),
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			core := in.Core().V1()
			c, err := pvcprotection.NewPVCProtectionController(klog.FromContext(ctx), core.PersistentVolumeClaims(), core.Pods(), set.Kube)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) { c.Run(ctx, protectionWorkers) }, nil
		},
	}
}

// NewVolumeProtection returns the controller that keeps a volume that is being deleted while a
// claim is bound to it.
func NewVolumeProtection(set *client.Set) *OnDemand {
	return &OnDemand{
		name: "persistentvolume-protection", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Core().V1().PersistentVolumes().Informer(),
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			c := pvprotection.NewPVProtectionController(klog.FromContext(ctx), in.Core().V1().PersistentVolumes(), set.Kube)
			return func(ctx context.Context) { c.Run(ctx, protectionWorkers) }, nil
		},
	}
}

// NewAttributesClassProtection returns the controller that keeps a VolumeAttributesClass that is
// being deleted while a claim or a volume names it. Admission puts its finalizer on each such
// class.
func NewAttributesClassProtection(set *client.Set) *OnDemand {
	return &OnDemand{
		name: "volumeattributesclass-protection", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Storage().V1().VolumeAttributesClasses().Informer(),
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			core := in.Core().V1()
			c, err := vacprotection.NewVACProtectionController(klog.FromContext(ctx), set.Kube, core.PersistentVolumeClaims(),
				core.PersistentVolumes(),
				in.Storage().V1().VolumeAttributesClasses())
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) { c.Run(ctx, protectionWorkers) }, nil
		},
	}
}
