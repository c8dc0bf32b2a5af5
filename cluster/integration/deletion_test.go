package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// raft makes a Deployment with two running pods.
func raft(ctx context.Context, t *testing.T, c client.WithWatch, ns string) *appsv1.Deployment {
	t.Helper()
	labels := map[string]string{"app": "raft"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "raft", Namespace: ns},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: ptr.To[int64](1), Containers: []corev1.Container{{Name: "web", Image: image}},
			}},
		},
	}
	if err := c.Create(ctx, d); err != nil {
		t.Fatal(err)
	}
	return await(ctx, t, c, &appsv1.DeploymentList{}, d, func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 2 })
}

// endings tells in which order the kinds of a namespace end, by the revisions at which they do.
func endings(ctx context.Context, t *testing.T, c client.WithWatch, ns string) func(n int) []string {
	t.Helper()
	events := make(chan watch.Event)
	for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}} {
		w, err := c.Watch(ctx, list, client.InNamespace(ns))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer w.Stop()
			for e := range w.ResultChan() {
				select {
				case events <- e:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return func(n int) []string {
		t.Helper()
		at := map[int]string{}
		var when []int
		for len(at) < n {
			select {
			case e := <-events:
				if e.Type == watch.Deleted {
					r := revision(t, e.Object.(metav1.Object))
					at[r] = fmt.Sprintf("%T", e.Object)[len("*v1."):]
					when = append(when, r)
				}
			case <-ctx.Done():
				t.Fatalf("%d of %d objects have ended: %v", len(at), n, at)
			}
		}
		slices.Sort(when)
		var kinds []string
		for _, r := range when {
			kinds = append(kinds, at[r])
		}
		return kinds
	}
}

// What is deleted takes along what it owns: before itself, after itself, or not at all.
func TestDeletionPropagation(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy metav1.DeletionPropagation
		want   []string
	}{
		{metav1.DeletePropagationForeground, []string{"Pod", "Pod", "ReplicaSet", "Deployment"}},
		{metav1.DeletePropagationBackground, []string{"Deployment", "ReplicaSet", "Pod", "Pod"}},
	} {
		t.Run(string(test.policy), func(t *testing.T) {
			t.Parallel()
			ctx, ns := namespace(t)
			c := typed(t, nil)
			d := raft(ctx, t, c, ns)
			ended := endings(ctx, t, c, ns)
			// The answer has what is left of it; when one asks afterwards, it may have ended.
			var left appsv1.Deployment
			if err := boat.kube.AppsV1().RESTClient().Delete().Namespace(ns).Resource("deployments").Name(d.Name).
				Body(&metav1.DeleteOptions{PropagationPolicy: &test.policy}).Do(ctx).Into(&left); err != nil {
				t.Fatal(err)
			}
			if test.policy == metav1.DeletePropagationForeground && !slices.Equal(left.Finalizers, []string{metav1.FinalizerDeleteDependents}) {
				t.Errorf("meanwhile its finalizers are %v", left.Finalizers)
			}
			if got := ended(4); !slices.Equal(got, test.want) {
				t.Errorf("deleted in the order %v, want %v", got, test.want)
			}
		})
	}
	t.Run(string(metav1.DeletePropagationOrphan), func(t *testing.T) {
		t.Parallel()
		ctx, ns := namespace(t)
		c := typed(t, nil)
		d := raft(ctx, t, c, ns)
		before, err := boat.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
			t.Fatal(err)
		}
		awaitEnd(ctx, t, c, &appsv1.DeploymentList{}, d)
		sets, err := boat.kube.AppsV1().ReplicaSets(ns).List(ctx, metav1.ListOptions{})
		if err != nil || len(sets.Items) != 1 || len(sets.Items[0].OwnerReferences) != 0 || sets.Items[0].DeletionTimestamp != nil {
			t.Fatalf("the ReplicaSets are %v, %v", sets.Items, err)
		}
		// A Deployment of the same selector adopts it, with its pods.
		again := raft(ctx, t, c, ns)
		set, err := boat.kube.AppsV1().ReplicaSets(ns).Get(ctx, sets.Items[0].Name, metav1.GetOptions{})
		if err != nil || !metav1.IsControlledBy(set, again) {
			t.Errorf("the ReplicaSet's owners are %v, %v", set.OwnerReferences, err)
		}
		pods, err := boat.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) != len(before.Items) {
			t.Errorf("there are %d pods, %v", len(pods.Items), err)
		}
		for i := range pods.Items {
			if pods.Items[i].UID != before.Items[i].UID ||
				pods.Items[i].Status.ContainerStatuses[0].ContainerID != before.Items[i].Status.ContainerStatuses[0].ContainerID {
				t.Errorf("pod %s is another one than before, %s", pods.Items[i].Name, before.Items[i].Name)
			}
		}
	})
}
