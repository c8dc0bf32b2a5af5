package upstream_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// disk makes a PersistentVolume of the class, with the policy Retain.
func (c *cluster) disk(ctx context.Context, t *testing.T, class string) *corev1.PersistentVolume {
	t.Helper()
	return c.path(ctx, t, class, "/none", corev1.PersistentVolumeReclaimRetain)
}

func (c *cluster) path(ctx context.Context, t *testing.T, class, path string,
	policy corev1.PersistentVolumeReclaimPolicy,
) *corev1.PersistentVolume {
	t.Helper()
	return must[*corev1.PersistentVolume](t)(c.kube.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "disk-"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
			PersistentVolumeReclaimPolicy: policy,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}},
		},
	}, metav1.CreateOptions{}))
}

func (c *cluster) claim(ctx context.Context, t *testing.T, ns, name, class string) {
	t.Helper()
	spec := claimSpec()
	spec.StorageClassName = &class
	must[*corev1.PersistentVolumeClaim](t)(c.kube.CoreV1().PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	}, metav1.CreateOptions{}))
}

// A claim is bound to a volume, both stay while they are used, and the volume is released
// afterwards.
func TestVolumesAreBoundProtectedAndReleased(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	claims, volumes := c.kube.CoreV1().PersistentVolumeClaims(ns), c.kube.CoreV1().PersistentVolumes()
	pv := c.disk(ctx, t, ns)
	phase := func(want corev1.PersistentVolumePhase) {
		t.Helper()
		eventually(ctx, t, "the volume is "+string(want), func() (bool, error) {
			now, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{})
			return err == nil && now.Status.Phase == want, fmt.Errorf("%v, %w", now.Status, err)
		})
	}
	phase(corev1.VolumeAvailable) // no claim is needed for that
	c.claim(ctx, t, ns, "data", ns)
	eventually(ctx, t, "the claim is bound", func() (bool, error) {
		claim, err := claims.Get(ctx, "data", metav1.GetOptions{})
		return err == nil && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName == pv.Name &&
			slices.Contains(claim.Finalizers, "kubernetes.io/pvc-protection"), fmt.Errorf("%+v, %w", claim.Status, err)
	})
	phase(corev1.VolumeBound)
	spec := template().Spec
	spec.Volumes = []corev1.Volume{{
		Name:         "data",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
	}}
	spec.NodeName = "n1"
	pod := must[*corev1.Pod](t)(c.kube.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec},
		metav1.CreateOptions{}))
	for _, err := range []error{volumes.Delete(ctx, pv.Name, metav1.DeleteOptions{}), claims.Delete(ctx, "data", metav1.DeleteOptions{})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	claim := must[*corev1.PersistentVolumeClaim](t)(claims.Get(ctx, "data", metav1.GetOptions{}))
	if claim.DeletionTimestamp == nil || claim.Status.Phase != corev1.ClaimBound {
		t.Errorf("a claim that a pod uses: %+v", claim)
	}
	if err := c.kube.CoreV1().Pods(ns).Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	for what, get := range map[string]func() error{
		"claim":  func() error { _, err := claims.Get(ctx, "data", metav1.GetOptions{}); return err },
		"volume": func() error { _, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{}); return err },
	} {
		eventually(ctx, t, "the "+what+" goes", func() (bool, error) { err := get(); return apierrors.IsNotFound(err), err })
	}
}

// What a volume shows of the host is never deleted, whatever its reclaim policy says. Upstream's
// plugin deletes such a path.
func TestPathsOfTheHostAreKept(t *testing.T) {
	t.Parallel()
	c := whole(t)
	for policy, reason := range map[corev1.PersistentVolumeReclaimPolicy]string{
		corev1.PersistentVolumeReclaimDelete: "VolumeFailedDelete", corev1.PersistentVolumeReclaimRecycle: "VolumeFailedRecycle",
	} {
		ctx, ns := c.namespace(t)
		dir, err := os.MkdirTemp("/tmp", "host-path-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		pv := c.path(ctx, t, ns, dir, policy)
		c.claim(ctx, t, ns, "data", ns)
		claims := c.kube.CoreV1().PersistentVolumeClaims(ns)
		eventually(ctx, t, "the claim is bound", func() (bool, error) {
			claim, err := claims.Get(ctx, "data", metav1.GetOptions{})
			return err == nil && claim.Status.Phase == corev1.ClaimBound, err
		})
		if err := claims.Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the volume has failed", func() (bool, error) {
			now, err := c.kube.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
			return err == nil && now.Status.Phase == corev1.VolumeFailed && strings.Contains(now.Status.Message, "remove what is in "+dir),
				fmt.Errorf("%+v, %w", now.Status, err)
		})
		c.told(ctx, t, "default", "PersistentVolume", pv.Name, reason)
		if _, err := os.Stat(dir); err != nil {
			t.Error("it was deleted:", err)
		}
	}
}

// Claims that cannot be bound say why, and hold up no other.
func TestClaimsThatCannotBeBound(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	for name, mode := range map[string]storagev1.VolumeBindingMode{
		"now":   storagev1.VolumeBindingImmediate,
		"later": storagev1.VolumeBindingWaitForFirstConsumer,
	} {
		class := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: ns + name}, Provisioner: "unknown.example/x",
			VolumeBindingMode: &mode,
		}
		must[*storagev1.StorageClass](t)(c.kube.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}))
		t.Cleanup(func() {
			// another cluster may be next
			_ = c.kube.StorageV1().StorageClasses().Delete(context.WithoutCancel(ctx), class.Name, metav1.DeleteOptions{})
		})
	}
	for class, reason := range map[string]string{
		"": "FailedBinding", "none": "ProvisioningFailed", ns + "now": "ExternalProvisioning",
		ns + "later": "WaitForFirstConsumer",
	} {
		name := "claim-" + reason
		c.claim(ctx, t, ns, strings.ToLower(name), class)
		c.told(ctx, t, ns, "PersistentVolumeClaim", strings.ToLower(name), reason)
	}
	pv := c.disk(ctx, t, ns)
	c.claim(ctx, t, ns, "good", ns)
	eventually(ctx, t, "another claim is bound", func() (bool, error) {
		claim, err := c.kube.CoreV1().PersistentVolumeClaims(ns).Get(ctx, "good", metav1.GetOptions{})
		return err == nil && claim.Spec.VolumeName == pv.Name, err
	})
}

// A class of attributes, too, can be deleted.
func TestAttributesClassesCanBeDeleted(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	classes := c.kube.StorageV1().VolumeAttributesClasses()
	must[*storagev1.VolumeAttributesClass](t)(classes.Create(ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: ns}, DriverName: "d.example", Parameters: map[string]string{"a": "b"},
	}, metav1.CreateOptions{}))
	if err := classes.Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the class goes", func() (bool, error) {
		_, err := classes.Get(ctx, ns, metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
}
