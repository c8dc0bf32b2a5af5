package apitest

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServerBehavesAsARealOne covers what controllers rely on and client-go's tracker lacks.
func TestServerBehavesAsARealOne(t *testing.T) {
	Controllers{}.Run(t, func(t *testing.T, s *Server) {
		ctx, pods := context.Background(), s.Kube.CoreV1().Pods(Namespace)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Finalizers: []string{"f"}}}
		made, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if err != nil || made.Name == "" || made.UID == "" || made.CreationTimestamp.IsZero() || made.Generation != 1 {
			t.Fatalf("created %+v (%v)", made, err)
		}
		stale := made.DeepCopy()
		made.Spec.NodeName = "n"
		made.Status.Phase = corev1.PodRunning // not by an update of the whole
		updated, err := pods.Update(ctx, made, metav1.UpdateOptions{})
		if err != nil || updated.Generation != 2 || updated.ResourceVersion <= made.ResourceVersion || updated.Status.Phase != "" {
			t.Errorf("updated to %+v (%v)", updated, err)
		}
		if _, err := pods.UpdateStatus(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("an update from an old version: %v", err)
		}
		if err := pods.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if left := s.Pods(t); len(left) != 1 || left[0].DeletionTimestamp == nil || *left[0].DeletionGracePeriodSeconds != 30 {
			t.Errorf("after its deletion: %+v", left)
		}
		s.Leave(t, made)
		if left := s.Pods(t); len(left) != 1 || left[0].DeletionTimestamp == nil {
			t.Errorf("with a finalizer left: %+v", left)
		}
		s.SetPod(t, made, func(p *corev1.Pod) { p.Finalizers = nil })
		if left := s.Pods(t); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
	})
}

// Regression: a cache whose watch began after a write could take itself for older than it was.
// Then a controller waited for its own writes to show.
func TestWatchesBeginInOrder(t *testing.T) {
	Controllers{}.Run(t, func(t *testing.T, s *Server) {
		ctx, pods := context.Background(), s.Kube.CoreV1().Pods(Namespace)
		const count = 20
		for i := range count {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%02d", count-i)}}
			if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		w, err := pods.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		for i, last := 0, ""; i < count; i++ {
			pod := (<-w.ResultChan()).Object.(*corev1.Pod)
			if pod.ResourceVersion <= last { // all have four digits
				t.Errorf("version %s follows %s", pod.ResourceVersion, last)
			}
			last = pod.ResourceVersion
		}
	})
}

func TestServerRefusesWrongStatus(t *testing.T) {
	Controllers{}.Run(t, func(t *testing.T, s *Server) {
		ctx, jobs := context.Background(), s.Kube.BatchV1().Jobs(Namespace)
		job, err := jobs.Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready := int32(1)
		job.Status = batchv1.JobStatus{Ready: &ready, StartTime: &metav1.Time{Time: time.Now()}}
		if _, err := jobs.UpdateStatus(ctx, job, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("more pods ready than active: %v", err)
		}
		s.invalid = nil
	})
}
