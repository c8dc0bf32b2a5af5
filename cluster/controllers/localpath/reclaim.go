package localpath

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/kubernetes/pkg/controller/volume/events"
)

// lookForUsers is when a volume is looked at again that a pod has whose object is gone: only its
// kubelet knows when it has ended.
const lookForUsers = 2 * time.Second

// reclaim deletes a volume that nothing wants any more.
func (c *controller) reclaim(ctx context.Context, pv *corev1.PersistentVolume) error {
	if mine, err := c.mine(pv); err != nil || !mine {
		return err
	}
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		if pv.DeletionTimestamp == nil {
			return nil
		}
		return c.letGo(ctx, pv) // the data stays
	}
	if pv.DeletionTimestamp != nil && unclaimed(pv) {
		// No claim has let go of the data, and none will: to delete it is its owner's choice.
		c.events.Eventf(pv, corev1.EventTypeWarning, events.VolumeDelete, "no claim had the volume: its data stays in %s, remove that yourself",
			pv.Spec.Local.Path)
		return c.letGo(ctx, pv)
	}
	over := pv.DeletionTimestamp != nil || pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed
	if !over {
		return nil
	}
	if claimed, err := c.claimed(ctx, pv); err != nil || claimed {
		return err // the binder releases it when the claim is gone
	}
	if wrong := c.checkPath(pv); wrong != "" {
		c.undeleted(pv, wrong)
		return nil
	}
	if used, err := c.used(pv); err != nil || used {
		return err
	}
	if same, err := c.unchanged(ctx, pv); err != nil || !same {
		return err // the event of the change leads here again
	}
	if err := c.dirs.remove(ctx, pv.Name); err != nil {
		if ctx.Err() != nil {
			return err // the next start goes on
		}
		c.undeleted(pv, err.Error())
		return err
	}
	return c.removeObject(ctx, pv)
}

// removeObject deletes the object of a volume whose data is gone.
func (c *controller) removeObject(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.DeletionTimestamp != nil {
		return c.letGo(ctx, pv)
	}
	err := c.set.Kube.CoreV1().PersistentVolumes().Delete(ctx, pv.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pv.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err // the event of this leads to the next step
}

// used says whether a pod that has not ended has the volume, and then has it looked at again.
func (c *controller) used(pv *corev1.PersistentVolume) (bool, error) {
	if c.Users == nil {
		return false, nil
	}
	users, err := c.Users(pv.Name)
	if err != nil || len(users) == 0 {
		return false, err
	}
	c.events.Eventf(pv, corev1.EventTypeNormal, events.VolumeDelete, "pods that have not ended yet still have the volume: %v", users)
	c.frame.AddAfter(pv.Name, lookForUsers)
	return true, nil
}

// mine says whether the volume is of this provisioner, and on this node.
func (c *controller) mine(pv *corev1.PersistentVolume) (bool, error) {
	if pv.Annotations[storagehelpers.AnnDynamicallyProvisioned] != Provisioner || pv.Spec.Local == nil {
		return false, nil
	}
	host, err := c.hostname()
	if err != nil {
		return false, err
	}
	return storagehelpers.CheckNodeAffinity(pv, map[string]string{corev1.LabelHostname: host}) == nil, nil
}

// unclaimed says whether an administrator has made the volume available to another claim, which may
// be reserved for it by its name.
func unclaimed(pv *corev1.PersistentVolume) bool {
	return pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == ""
}

// unchanged asks whether the volume is still what the cache has of it: an administrator may just
// have decided to keep its data.
func (c *controller) unchanged(ctx context.Context, pv *corev1.PersistentVolume) (bool, error) {
	now, err := c.set.Kube.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return now.UID == pv.UID && now.Status.Phase == pv.Status.Phase && equality.Semantic.DeepEqual(now.Spec, pv.Spec), nil
}

// claimed asks whether the volume's claim exists: caches may be late, and data is at stake.
func (c *controller) claimed(ctx context.Context, pv *corev1.PersistentVolume) (bool, error) {
	if unclaimed(pv) {
		return true, nil
	}
	ref := pv.Spec.ClaimRef
	claim, err := c.set.Kube.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && claim.UID == ref.UID, err
}

// checkPath says what keeps a volume's data from being deleted: the directory is the one of its
// name, whatever its object says.
func (c *controller) checkPath(pv *corev1.PersistentVolume) string {
	if want := c.dirs.path(pv.Name); pv.Spec.Local.Path != want {
		return fmt.Sprintf("its path is %q and not %q: what is there is left alone, remove it and the finalizer %s yourself",
			pv.Spec.Local.Path, want, storagehelpers.PVDeletionProtectionFinalizer)
	}
	return ""
}

func (c *controller) undeleted(pv *corev1.PersistentVolume, why string) {
	c.events.Event(pv, corev1.EventTypeWarning, events.VolumeFailedDelete, why)
}

// letGo removes the finalizer of a volume that is being deleted.
func (c *controller) letGo(ctx context.Context, pv *corev1.PersistentVolume) error {
	i := slices.Index(pv.Finalizers, storagehelpers.PVDeletionProtectionFinalizer)
	if i < 0 {
		return nil
	}
	pv = pv.DeepCopy()
	pv.Finalizers = slices.Delete(pv.Finalizers, i, i+1)
	_, err := c.set.Kube.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
