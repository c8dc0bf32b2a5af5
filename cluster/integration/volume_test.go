package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// user makes a pod that runs a shell command with the claim at /data, as an ordinary
// user of a group.
func user(ctx context.Context, t *testing.T, ns, name, claim, command string) *corev1.Pod {
	t.Helper()
	pod, err := boat.kube.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](1),
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000), FSGroup: ptr.To[int64](4242)},
			Containers: []corev1.Container{{
				Name: "main", Image: image, Command: []string{"sh", "-c", command},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// mountsOf are the places where the host has a volume mounted.
func mountsOf(t *testing.T, pid int, volume string) (found []string) {
	t.Helper()
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasSuffix(fields[4], "/"+volume) {
			found = append(found, fields[4])
		}
	}
	return found
}

// A claim without a class gets a directory of the node that its first pod is placed on. Its data
// outlives pods and the cluster process, stays while a pod has it, also a pod that was deleted by
// force, and goes with the claim.
func TestAClaimsData(t *testing.T) {
	ctx, ns := namespace(t)
	claims, pods := boat.kube.CoreV1().PersistentVolumeClaims(ns), boat.kube.CoreV1().Pods(ns)
	claim, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != "local-path" {
		t.Fatalf("the claim has the class %v", claim.Spec.StorageClassName)
	}
	phase := func(name string, want corev1.PodPhase) {
		t.Helper()
		eventually(ctx, t, "pod "+name+" is "+string(want), func() (bool, error) {
			pod, err := pods.Get(ctx, name, metav1.GetOptions{})
			return err == nil && pod.Status.Phase == want, fmt.Errorf("%+v, %w", pod.Status, err)
		})
	}
	user(ctx, t, ns, "writer", "data", "id && echo precious >/data/file")
	phase("writer", corev1.PodSucceeded)
	if claim, err = claims.Get(ctx, "data", metav1.GetOptions{}); err != nil || claim.Status.Phase != corev1.ClaimBound {
		t.Fatalf("the claim is %+v, %v", claim.Status, err)
	}
	volume := claim.Spec.VolumeName
	dir := filepath.Join(boat.root(), "kube", "local-path", "volumes", volume)
	if data, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(data) != "precious\n" {
		t.Errorf("the volume has %q, %v", data, err)
	}

	// It ignores SIGTERM, so that it runs on for its grace when its object is gone.
	user(ctx, t, ns, "reader", "data", `trap "" TERM; grep -q precious /data/file && touch /data/read && while :; do sleep 1; done`)
	phase("reader", corev1.PodRunning)
	eventually(ctx, t, "the next pod has the data", func() (bool, error) {
		_, err := os.Stat(filepath.Join(dir, "read"))
		return err == nil, err
	})
	boat.kill(t)
	if err := pods.Delete(ctx, "writer", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	if err := claims.Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if claim, err = claims.Get(ctx, "data", metav1.GetOptions{}); err != nil || claim.DeletionTimestamp == nil {
		t.Errorf("a claim that a pod has, deleted: %+v, %v", claim, err)
	}
	if mounts := mountsOf(t, boat.process(t), volume); len(mounts) == 0 {
		t.Error("the volume is not mounted for the pod that runs")
	}
	if err := pods.Delete(ctx, "reader", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the volume goes", func() (bool, error) {
		_, err := boat.kube.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
	if _, err := claims.Get(ctx, "data", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the claim is still there: %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("its data is still there: %v", err)
	}
	if mounts := mountsOf(t, boat.process(t), volume); len(mounts) > 0 {
		t.Errorf("still mounted at %q", mounts)
	}
}
