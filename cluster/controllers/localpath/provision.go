package localpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/kubernetes/pkg/controller/volume/events"
)

// lookAgain is when a claim is looked at again whose class is missing, or that no scheduler chooses
// a node for and the disk has no room for.
const lookAgain = 30 * time.Second

// eventUnlimited is the reason of Events about volumes that can grow beyond their claims.
const eventUnlimited = "VolumeUnlimited"

// provision makes the volume of a claim, if that is to be on this node.
func (c *controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	className := storagehelpers.GetPersistentVolumeClaimClass(claim)
	class, err := c.classes.Get(className)
	if apierrors.IsNotFound(err) { // the cache may not have it yet
		class, err = c.set.Kube.StorageV1().StorageClasses().Get(ctx, className, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		c.failed(claim, fmt.Sprintf("storage class %q does not exist", className))
		c.frame.AddAfter(nameOf(claim), lookAgain)
		return nil
	}
	if err != nil {
		return err
	}
	selected := claim.Annotations[storagehelpers.AnnSelectedNode]
	waits := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	if class.Provisioner != Provisioner || (waits || c.OnlySelected) && selected == "" || selected != "" && selected != c.NodeName {
		return nil
	}
	if why := refused(claim, class); why != "" {
		c.failed(claim, why)
		return nil
	}
	host, err := c.hostname()
	if err != nil {
		return err
	}
	name := nameOf(claim)
	if made, err := c.dirs.has(name); err != nil || !made {
		size := sizeOf(claim)
		err = errors.Join(err, c.dirs.room(size.Value()))
		var full *noRoom
		if errors.As(err, &full) {
			return c.full(ctx, claim, full)
		}
		if err == nil {
			err = c.makeDirectory(claim)
		}
		if err != nil {
			c.failed(claim, err.Error())
			return err
		}
	}
	_, err = c.set.Kube.CoreV1().PersistentVolumes().Create(ctx, c.volume(claim, class, host), metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err): // made before a crash, or the cache does not have it yet
		return nil
	case err != nil:
		c.failed(claim, err.Error())
		return err
	}
	c.events.Eventf(claim, corev1.EventTypeNormal, events.ProvisioningSucceeded, "Successfully provisioned volume %s", name)
	return nil
}

// makeDirectory makes the directory of a claim's volume.
func (c *controller) makeDirectory(claim *corev1.PersistentVolumeClaim) error {
	name, size := nameOf(claim), sizeOf(claim)
	unlimited, err := c.dirs.make(name, size.Value())
	if err == nil && unlimited != nil {
		c.frame.Log.Warn("a volume has no limit", "volume", name, "err", unlimited)
		c.events.Eventf(claim, corev1.EventTypeWarning, eventUnlimited, "volume %s has no limit: %v", name, unlimited)
	}
	return err
}

// refused says why a claim cannot have a volume of this kind, "" if it can.
func refused(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	if mode := claim.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		return "volumes of this class are directories: volumeMode Block is not possible"
	}
	for _, mode := range claim.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return fmt.Sprintf(
				"volumes of this class are on one node, accessMode %s is not possible: use ReadWriteOnce, with which all pods of a node can share a "+
					"volume", mode,
			)
		}
	}
	if claim.Spec.Selector != nil {
		return "volumes of this class have no labels: a selector is not possible"
	}
	if claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil {
		return "volumes of this class begin empty: a dataSource is not possible"
	}
	if len(class.Parameters) > 0 {
		return fmt.Sprintf("storage class %q has parameters that %s does not know: %s", class.Name, Provisioner,
			strings.Join(slices.Sorted(maps.Keys(class.Parameters)), ", "))
	}
	if len(class.MountOptions) > 0 {
		return fmt.Sprintf("storage class %q has mountOptions, which directories do not have", class.Name)
	}
	return ""
}

// full says that the disk has no room for a claim, and lets the scheduler choose again.
func (c *controller) full(ctx context.Context, claim *corev1.PersistentVolumeClaim, why *noRoom) error {
	c.failed(claim, why.Error())
	if claim.Annotations[storagehelpers.AnnSelectedNode] == "" {
		c.frame.AddAfter(nameOf(claim), lookAgain)
		return nil
	}
	claim = claim.DeepCopy()
	delete(claim.Annotations, storagehelpers.AnnSelectedNode)
	_, err := c.set.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *controller) failed(claim *corev1.PersistentVolumeClaim, why string) {
	c.events.Event(claim, corev1.EventTypeWarning, events.ProvisioningFailed, why)
}

// volume is the PersistentVolume of a claim. It is the claim's from the start, so that no other one
// is bound to it.
func (c *controller) volume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, host string) *corev1.PersistentVolume {
	policy, mode := corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeFilesystem
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	name := nameOf(claim)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{storagehelpers.AnnDynamicallyProvisioned: Provisioner},
			Finalizers: []string{storagehelpers.PVDeletionProtectionFinalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: sizeOf(claim)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: c.dirs.path(name)}},
			AccessModes:            claim.Spec.AccessModes, VolumeMode: &mode,
			StorageClassName: class.Name, PersistentVolumeReclaimPolicy: policy,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
					Values: []string{host},
				}},
			}}}},
		},
	}
}

func sizeOf(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[corev1.ResourceStorage]
}
