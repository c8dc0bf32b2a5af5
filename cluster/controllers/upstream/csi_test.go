package upstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a driver's external-provisioner, external-attacher and kubelet do is the test's: the
// annotations, finalizers and states are those that they rely on.
func TestVolumeOfADriver(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	driver, node := ns+".example.org", ns+"-node"
	later, del := storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimDelete
	must[*storagev1.StorageClass](t)(c.kube.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: ns}, Provisioner: driver, VolumeBindingMode: &later, ReclaimPolicy: &del,
	}, metav1.CreateOptions{}))
	made := must[*corev1.Node](t)(c.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{Unschedulable: true},
	}, metav1.CreateOptions{}))
	t.Cleanup(func() { // other tests count nodes and classes
		ctx := context.WithoutCancel(ctx)
		_ = c.kube.StorageV1().StorageClasses().Delete(ctx, ns, metav1.DeleteOptions{})
		_ = c.kube.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{})
	})
	claims, volumes, attachments := c.kube.CoreV1().PersistentVolumeClaims(ns), c.kube.CoreV1().PersistentVolumes(),
		c.kube.StorageV1().VolumeAttachments()

	// The scheduler chooses the node, and the provisioner is asked.
	c.claim(ctx, t, ns, "data", ns)
	patch(t, func(body []byte) error {
		_, err := claims.Patch(ctx, "data", types.MergePatchType, body, metav1.PatchOptions{})
		return err
	}, map[string]any{"metadata": map[string]any{"annotations": map[string]string{"volume.kubernetes.io/selected-node": node}}})
	var claim *corev1.PersistentVolumeClaim
	eventually(ctx, t, "the provisioner is asked", func() (bool, error) {
		var err error
		claim, err = claims.Get(ctx, "data", metav1.GetOptions{})
		return err == nil && claim.Annotations["volume.kubernetes.io/storage-provisioner"] == driver, fmt.Errorf("%v, %w", claim.Annotations, err)
	})
	const finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	pv := must[*corev1.PersistentVolume](t)(volumes.Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-" + string(claim.UID), Finalizers: []string{finalizer},
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": driver},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: claim.Spec.AccessModes, StorageClassName: ns, PersistentVolumeReclaimPolicy: del,
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: ns, Name: "data",
				UID: claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "handle"}},
		},
	}, metav1.CreateOptions{}))
	eventually(ctx, t, "the claim is bound", func() (bool, error) {
		now, err := claims.Get(ctx, "data", metav1.GetOptions{})
		return err == nil && now.Status.Phase == corev1.ClaimBound && now.Spec.VolumeName == pv.Name, err
	})

	// A pod has it attached, in a later second than the node was made: an attachment that may be
	// older than its node is not detached at once.
	eventually(ctx, t, "the second of the node is over", func() (bool, error) {
		return time.Since(made.CreationTimestamp.Time) >= time.Second, nil
	})
	spec := template().Spec
	spec.NodeName = node
	spec.Volumes = []corev1.Volume{{
		Name:         "data",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
	}}
	must[*corev1.Pod](t)(c.kube.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec},
		metav1.CreateOptions{}))
	var attachment *storagev1.VolumeAttachment
	eventually(ctx, t, "the attacher is asked", func() (bool, error) {
		list, err := attachments.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(list.Items, func(a storagev1.VolumeAttachment) bool { return a.Spec.Attacher == driver })
		if i < 0 {
			return false, fmt.Errorf("%d attachments of others", len(list.Items))
		}
		attachment = &list.Items[i]
		return true, nil
	})
	if attachment.Spec.NodeName != node || *attachment.Spec.Source.PersistentVolumeName != pv.Name {
		t.Errorf("asked for %+v", attachment.Spec)
	}
	patch(t, func(body []byte) error {
		_, err := attachments.Patch(ctx, attachment.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	}, map[string]any{"status": map[string]any{"attached": true}})
	reports := func(want int) {
		t.Helper()
		eventually(ctx, t, fmt.Sprintf("the node reports %d volumes", want), func() (bool, error) {
			now, err := c.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			return err == nil && len(now.Status.VolumesAttached) == want, err
		})
	}
	reports(1)
	c.told(ctx, t, ns, "Pod", "p", "SuccessfulAttachVolume")

	// It is detached after the pod, and the provisioner deletes it after the claim.
	if err := c.kube.CoreV1().Pods(ns).Delete(ctx, "p", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	reports(0)
	eventually(ctx, t, "the attachment goes", func() (bool, error) {
		_, err := attachments.Get(ctx, attachment.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
	if err := claims.Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the volume is released", func() (bool, error) {
		now, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{})
		return err == nil && now.Status.Phase == corev1.VolumeReleased && slices.Contains(now.Finalizers, finalizer) &&
				now.DeletionTimestamp == nil,
			fmt.Errorf("%+v, %w", now, err)
	})
	if err := volumes.Delete(ctx, pv.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if now := must[*corev1.PersistentVolume](t)(volumes.Get(ctx, pv.Name, metav1.GetOptions{})); now.DeletionTimestamp == nil ||
		!slices.Contains(now.Finalizers, finalizer) {
		t.Errorf("before its provisioner has deleted it: %+v", now.ObjectMeta)
	}
	patch(t, func(body []byte) error {
		_, err := volumes.Patch(ctx, pv.Name, types.JSONPatchType, body, metav1.PatchOptions{})
		return err
	}, []map[string]any{{"op": "remove", "path": "/metadata/finalizers"}})
	eventually(ctx, t, "the volume goes", func() (bool, error) {
		_, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
}

func patch(t *testing.T, send func([]byte) error, change any) {
	t.Helper()
	body, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(body); err != nil {
		t.Fatal(err)
	}
}
