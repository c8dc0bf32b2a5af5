package integration

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// A PodDisruptionBudget allows as many evictions as it says, and no more: a drain goes on as soon
// as there are other pods. This was once refused forever.
func TestDisruptionBudget(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	labels := map[string]string{"app": "web"}
	_, err := boat.kube.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: ptr.To[int64](1),
					Containers:                    []corev1.Container{{Name: "main", Image: image}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	budgets := boat.kube.PolicyV1().PodDisruptionBudgets(ns)
	budget, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &none, Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(want int32) {
		t.Helper()
		eventually(ctx, t, "the budget is counted", func() (bool, error) {
			budget, err = budgets.Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			s := budget.Status
			return s.ObservedGeneration == budget.Generation && s.CurrentHealthy == 2 && s.DisruptionsAllowed == want, fmt.Errorf("status %+v", s)
		})
	}
	allowed(0)
	pods, err := boat.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) != 2 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	evict := func(pod string) error {
		return boat.kube.PolicyV1().Evictions(ns).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: ns}})
	}
	if err := evict(pods.Items[0].Name); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
		t.Fatalf("an eviction that the budget forbids: %v", err)
	}
	budget.Spec.MaxUnavailable = &one
	if _, err := budgets.Update(ctx, budget, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	allowed(1)
	if err := evict(pods.Items[0].Name); err != nil {
		t.Fatalf("an eviction that the budget allows: %v", err)
	}
	allowed(1) // another pod has taken its place
	if err := evict(pods.Items[1].Name); err != nil {
		t.Errorf("the next eviction: %v", err)
	}
}
