package upstream_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimSpec asks for a gigabyte.
func claimSpec() corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}
}

// createWithScratch makes a pod with an ephemeral volume.
func (c *cluster) createWithScratch(ctx context.Context, t *testing.T, ns, name string) *corev1.Pod {
	t.Helper()
	spec := template().Spec
	spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"made": "here"}},
			Spec:       claimSpec(),
		},
	}}}}
	return must[*corev1.Pod](t)(c.kube.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
		metav1.CreateOptions{}))
}

// A pod's ephemeral volume has a claim that goes with the pod. A claim of that name that is not the
// pod's is left alone.
func TestEphemeralVolumes(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	claims := c.kube.CoreV1().PersistentVolumeClaims(ns)
	pod := c.createWithScratch(ctx, t, ns, "p")
	eventually(ctx, t, "the claim is made", func() (bool, error) {
		claim, err := claims.Get(ctx, "p-scratch", metav1.GetOptions{})
		return err == nil && metav1.IsControlledBy(claim, pod) && claim.Labels["made"] == "here", err
	})
	if err := c.kube.CoreV1().Pods(ns).Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the claim goes", func() (bool, error) {
		_, err := claims.Get(ctx, "p-scratch", metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})

	other := must[*corev1.PersistentVolumeClaim](t)(claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "q-scratch"}, Spec: claimSpec(),
	}, metav1.CreateOptions{}))
	c.createWithScratch(ctx, t, ns, "q")
	c.told(ctx, t, ns, "Pod", "q", "FailedBinding")
	if claim := must[*corev1.PersistentVolumeClaim](t)(claims.Get(ctx, "q-scratch", metav1.GetOptions{})); claim.UID != other.UID ||
		len(claim.OwnerReferences) != 0 {
		t.Errorf("another one's claim is %+v", claim)
	}
}
