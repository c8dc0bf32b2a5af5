package upstream_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
)

// busy is a template of pods that ask for 100m of CPU.
func busy(labels map[string]string) corev1.PodTemplateSpec {
	pod := template(labels)
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	return pod
}

// createScaler makes an autoscaler of one to three pods that are to use half of the CPU that they
// ask for.
func (c *cluster) createScaler(ctx context.Context, t *testing.T, ns string, target autoscalingv2.CrossVersionObjectReference,
	change func(*autoscalingv2.HorizontalPodAutoscalerSpec),
) {
	t.Helper()
	scaler := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: target.Name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: target, MinReplicas: ptr.To[int32](1), MaxReplicas: 3,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name:   corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](50)},
			}}},
		},
	}
	if change != nil {
		change(&scaler.Spec)
	}
	must[*autoscalingv2.HorizontalPodAutoscaler](t)(c.kube.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(ctx, scaler,
		metav1.CreateOptions{}))
}

// impatient has fewer pods as soon as fewer are enough.
func impatient(spec *autoscalingv2.HorizontalPodAutoscalerSpec) {
	spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](0)},
	}
}

// awaitCondition waits for a condition of an autoscaler.
func (c *cluster) awaitCondition(ctx context.Context, t *testing.T, ns, name string,
	condition autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason string,
) {
	t.Helper()
	eventually(ctx, t, fmt.Sprintf("%s of %s is %s: %s", condition, name, status, reason), func() (bool, error) {
		scaler, err := c.kube.AutoscalingV2().HorizontalPodAutoscalers(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, found := range scaler.Status.Conditions {
			if found.Type == condition && found.Status == status && found.Reason == reason {
				return true, nil
			}
		}
		return false, fmt.Errorf("conditions %+v", scaler.Status.Conditions)
	})
}

// A Deployment grows with the CPU that its pods use, and shrinks as soon, or as late, as the
// autoscaler says.
func TestAutoscalerOfDeployments(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	deployments := c.kube.AppsV1().Deployments(ns)
	for name, behaviour := range map[string]func(*autoscalingv2.HorizontalPodAutoscalerSpec){"soon": impatient, "late": nil} {
		app := map[string]string{"app": name}
		must[*appsv1.Deployment](t)(deployments.Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: app}, Template: busy(app)},
		}, metav1.CreateOptions{}))
		c.createScaler(ctx, t, ns, autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}, behaviour)
	}
	ready := func(name string, want int32) {
		t.Helper()
		eventually(ctx, t, fmt.Sprint(name, " has ", want), func() (bool, error) {
			d, err := deployments.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return *d.Spec.Replicas == want && d.Status.ReadyReplicas == want && d.Status.Replicas == want,
				fmt.Errorf("wants %d, status %+v", *d.Spec.Replicas, d.Status)
		})
	}
	c.usage.set(ns, 150)
	ready("soon", 3)
	ready("late", 3)
	c.usage.set(ns, 10)
	ready("soon", 1)
	c.awaitCondition(ctx, t, ns, "late", autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleDownStabilized")
	ready("late", 3)
}

// boatsOf is a resource with a scale subresource, another one for each namespace. Its pods are made
// by the test.
func boatsOf(ns string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: ns + ".example.org", Version: "v1", Resource: "boats"}
}

func (c *cluster) defineBoats(ctx context.Context, t *testing.T, boats schema.GroupVersionResource) {
	t.Helper()
	definitions := must[*apiextensions.Clientset](t)(apiextensions.NewForConfig(c.config)).ApiextensionsV1().CustomResourceDefinitions()
	must[*apiextensionsv1.CustomResourceDefinition](t)(definitions.Create(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: boats.Resource + "." + boats.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: boats.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: boats.Resource, Kind: "Boat"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: boats.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: ptr.To(true),
				}},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Scale: &apiextensionsv1.CustomResourceSubresourceScale{
					SpecReplicasPath: ".spec.sails", StatusReplicasPath: ".status.sails", LabelSelectorPath: ptr.To(".status.selector"),
				}},
			}},
		},
	}, metav1.CreateOptions{}))
	eventually(ctx, t, "the definition is established", func() (bool, error) {
		d, err := definitions.Get(ctx, boats.Resource+"."+boats.Group, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range d.Status.Conditions {
			if condition.Type == apiextensionsv1.Established {
				return condition.Status == apiextensionsv1.ConditionTrue, nil
			}
		}
		return false, fmt.Errorf("conditions %v", d.Status.Conditions)
	})
}

// createBoat makes a boat with two sails, and a pod for each.
func (c *cluster) createBoat(ctx context.Context, t *testing.T, ns string, boats schema.GroupVersionResource) dynamic.ResourceInterface {
	t.Helper()
	all := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(c.config)).Resource(boats).Namespace(ns)
	boat := must[*unstructured.Unstructured](t)(all.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": boats.GroupVersion().String(), "kind": "Boat", "metadata": map[string]any{"name": "boat"},
		"spec": map[string]any{"sails": int64(2)}, "status": map[string]any{"sails": int64(2), "selector": "app=boat"},
	}}, metav1.CreateOptions{}))
	owner := *metav1.NewControllerRef(boat, boats.GroupVersion().WithKind("Boat"))
	for i := range 2 {
		must[*corev1.Pod](t)(c.kube.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprint("sail-", i), Labels: map[string]string{"app": "boat"},
				OwnerReferences: []metav1.OwnerReference{owner},
			},
			Spec: busy(nil).Spec,
		}, metav1.CreateOptions{}))
	}
	return all
}

// Kinds that are defined while the controllers run are scaled, and counted by budgets, though their
// absence was known before.
func TestKindsThatCome(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	boats := boatsOf(ns)
	target := autoscalingv2.CrossVersionObjectReference{APIVersion: boats.GroupVersion().String(), Kind: "Boat", Name: "boat"}
	c.createScaler(ctx, t, ns, target, impatient)
	c.awaitCondition(ctx, t, ns, "boat", autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale")
	c.usage.set(ns, 50) // neither more nor fewer are wanted
	c.defineBoats(ctx, t, boats)
	all := c.createBoat(ctx, t, ns, boats)
	c.createBudget(ctx, t, ns, "boat", "50%")
	c.awaitAllowed(ctx, t, ns, "boat", 1)
	sails := func(want int64) {
		t.Helper()
		eventually(ctx, t, fmt.Sprint("the boat is to have ", want, " sails"), func() (bool, error) {
			boat, err := all.Get(ctx, "boat", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			found, _, err := unstructured.NestedInt64(boat.Object, "spec", "sails")
			return err == nil && found == want, fmt.Errorf("%d sails, %w", found, err)
		})
	}
	c.awaitCondition(ctx, t, ns, "boat", autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound")
	sails(2)
	c.usage.set(ns, 75)
	sails(3)
}

// An autoscaler says why it cannot work.
func TestAutoscalerThatCannotWork(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	c.createScaler(ctx, t, ns, autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "absent"}, nil)
	c.awaitCondition(ctx, t, ns, "absent", autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale")
	c.told(ctx, t, ns, "HorizontalPodAutoscaler", "absent", "FailedGetScale")

	app := map[string]string{"app": "idle"}
	must[*appsv1.Deployment](t)(c.kube.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "idle"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: app}, Template: template(app)},
	}, metav1.CreateOptions{}))
	c.createScaler(ctx, t, ns, autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "idle"},
		func(spec *autoscalingv2.HorizontalPodAutoscalerSpec) {
			spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "requests"},
				Target: autoscalingv2.MetricTarget{
					Type:         autoscalingv2.AverageValueMetricType,
					AverageValue: resource.NewQuantity(1, resource.DecimalSI),
				},
			}}}
		})
	c.awaitCondition(ctx, t, ns, "idle", autoscalingv2.ScalingActive, corev1.ConditionFalse, "FailedGetPodsMetric")
	c.awaitCondition(ctx, t, ns, "idle", autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale")
}
