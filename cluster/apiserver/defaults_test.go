package apiserver

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

func TestOneAutoscalerInBothVersions(t *testing.T) {
	client := clientOf(t, overTLS(t))
	ns := namespace(t, admin(t))
	made, err := client.AutoscalingV1().HorizontalPodAutoscalers(ns).Create(t.Context(), &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MaxReplicas:    3, TargetCPUUtilizationPercentage: ptr.To[int32](60),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	same, err := client.AutoscalingV2().HorizontalPodAutoscalers(ns).Get(t.Context(), made.Name, metav1.GetOptions{})
	if err != nil || len(same.Spec.Metrics) != 1 || *same.Spec.Metrics[0].Resource.Target.AverageUtilization != 60 {
		t.Errorf("as autoscaling/v2: %+v, %v", same, err)
	}
}

func TestDefaultIngressClass(t *testing.T) {
	client := clientOf(t, overTLS(t)).NetworkingV1()
	ns := namespace(t, admin(t))
	class := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: "ours", Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}},
		Spec:       networkingv1.IngressClassSpec{Controller: "example.org/ours"},
	}
	if _, err := client.IngressClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() { // it is for all tests' Ingresses
		if err := client.IngressClasses().Delete(t.Context(), class.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	waitSeen(t, server.Informers().Networking().V1().IngressClasses().Informer(), func(obj any) bool {
		return obj.(*networkingv1.IngressClass).Name == class.Name
	})
	got, err := client.Ingresses(ns).Create(t.Context(), &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}},
		}},
	}, metav1.CreateOptions{})
	if err != nil || got.Spec.IngressClassName == nil || *got.Spec.IngressClassName != class.Name {
		t.Errorf("an Ingress without a class: %+v, %v", got, err)
	}
}

func TestResizeBeyondTheNode(t *testing.T) {
	client := clientOf(t, overTLS(t)).CoreV1()
	ns := namespace(t, admin(t))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	node, err := client.Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("2"),
		corev1.ResourceMemory: resource.MustParse("1Gi"),
	}
	node.Status.Capacity = node.Status.Allocatable
	if _, err := client.Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitSeen(t, server.Informers().Core().V1().Nodes().Informer(), func(obj any) bool {
		known := obj.(*corev1.Node)
		return known.Name == node.Name && len(known.Status.Allocatable) > 0
	})
	cpu := func(n string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}}
	}
	pod, err := client.Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "i", Resources: cpu("1")}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers[0].Resources = cpu("3")
	if _, err := client.Pods(ns).UpdateResize(t.Context(), pod.Name, pod, metav1.UpdateOptions{}); err == nil ||
		!strings.Contains(err.Error(), "enough allocatable") {
		t.Errorf("more than the node has: %v", err)
	}
}

func TestViewersMayReadMetrics(t *testing.T) {
	role, err := admin(t).RbacV1().ClusterRoles().Get(t.Context(), "system:aggregated-metrics-reader", metav1.GetOptions{})
	if err != nil || len(role.Rules) != 1 || role.Rules[0].APIGroups[0] != "metrics.k8s.io" {
		t.Fatalf("%+v, %v", role, err)
	}
	view, err := admin(t).RbacV1().ClusterRoles().Get(t.Context(), "view", metav1.GetOptions{})
	if err != nil || view.AggregationRule == nil {
		t.Fatal(err)
	}
	for _, s := range view.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil || !selector.Matches(labels.Set(role.Labels)) {
			t.Errorf("the role view does not take it in: %v, %v", selector, err)
		}
	}
}
