package upstream_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// createBudget says how many of an app's pods may be unavailable.
func (c *cluster) createBudget(ctx context.Context, t *testing.T, ns, app, unavailable string) {
	t.Helper()
	must[*policyv1.PodDisruptionBudget](t)(c.kube.PolicyV1().PodDisruptionBudgets(ns).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.Parse(unavailable)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}, metav1.CreateOptions{}))
}

// awaitAllowed waits until a budget allows a number of evictions.
func (c *cluster) awaitAllowed(ctx context.Context, t *testing.T, ns, app string, want int32) {
	t.Helper()
	eventually(ctx, t, fmt.Sprint("the budget allows ", want), func() (bool, error) {
		budget, err := c.kube.PolicyV1().PodDisruptionBudgets(ns).Get(ctx, app, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return budget.Status.ObservedGeneration == budget.Generation && budget.Status.DisruptionsAllowed == want,
			fmt.Errorf("status %+v", budget.Status)
	})
}

func (c *cluster) evict(ctx context.Context, ns, pod string) error {
	return c.kube.PolicyV1().Evictions(ns).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: ns}})
}

// A node is drained as kubectl does it: each of its pods is evicted, again and again while the
// budget says no. There are never fewer pods than the budget allows.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	app := map[string]string{"app": "web"}
	pod := template(app)
	pod.Spec.NodeName = ns // the pods of this test are on a node
	nodes := c.kube.CoreV1().Nodes()
	must[*corev1.Node](t)(nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}))
	t.Cleanup(func() { _ = nodes.Delete(context.Background(), ns, metav1.DeleteOptions{}) })
	// Not a StatefulSet: for two minutes, a budget takes a pod for the evicted one of its name,
	// unless it has seen that go.
	all := c.kube.CoreV1().ReplicationControllers(ns)
	must[*corev1.ReplicationController](t)(all.Create(ctx, &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ReplicationControllerSpec{Replicas: ptr.To[int32](3), Selector: app, Template: &pod},
	}, metav1.CreateOptions{}))
	c.createBudget(ctx, t, ns, "web", "1")
	c.awaitAllowed(ctx, t, ns, "web", 1)
	list := must[*corev1.PodList](t)(c.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", ns).String(),
	}))
	if len(list.Items) != 3 {
		t.Fatalf("%d pods on the node", len(list.Items))
	}
	// New pods wait, so that the budget is used up by one eviction.
	must[*corev1.ReplicationController](t)(all.Patch(ctx, "web", types.MergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"labels":{"`+holds+`":"yes"}}}}}`), metav1.PatchOptions{}))
	eventually(ctx, t, "the new template is known", func() (bool, error) {
		rc, err := all.Get(ctx, "web", metav1.GetOptions{})
		return err == nil && rc.Status.ObservedGeneration == rc.Generation, err
	})
	if err := c.evict(ctx, ns, list.Items[0].Name); err != nil {
		t.Fatalf("the first eviction: %v", err)
	}
	if err := c.evict(ctx, ns, list.Items[1].Name); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("the second eviction: %v", err)
	}
	for i := range list.Items {
		if i > 0 {
			eventually(ctx, t, "the next one is evicted", func() (bool, error) {
				err := c.evict(ctx, ns, list.Items[i].Name)
				return err == nil, err
			})
		}
		var replacement *corev1.Pod
		ready := 0
		eventually(ctx, t, "its place is taken", func() (bool, error) {
			pods, err := c.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			replacement, ready = nil, 0
			for _, pod := range pods.Items {
				if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
					ready++
				} else if pod.DeletionTimestamp == nil {
					replacement = &pod
				}
			}
			return replacement != nil && len(pods.Items) == 3, fmt.Errorf("%d pods", len(pods.Items))
		})
		if ready != 2 {
			t.Errorf("%d pods run after eviction %d", ready, i+1)
		}
		c.ready(replacement, replacement.CreationTimestamp.Time)
	}
	c.awaitAllowed(ctx, t, ns, "web", 1)
}
