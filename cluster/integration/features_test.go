package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The API server asks a node for what only newer kubelets can do if the node declares it. Without
// that a resize of a pod itself, or of an init container, was refused, and the scheduler of an
// upstream control plane left pods with the action RestartAllContainers alone.
func TestDeclaredFeatures(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	amounts := func(memory string) corev1.ResourceRequirements {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse(memory)}
		return corev1.ResourceRequirements{Requests: list, Limits: list}
	}
	whole := amounts("64Mi")
	// The init container ends when it has more memory than it began with.
	const grown = `for g in memory/memory.limit_in_bytes memory.max; do f=/sys/fs/cgroup/$g; [ -e $f ] && break; done
		while [ "$(cat $f)" != 33554432 ]; do sleep 0.1; done`
	rules := []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{9}},
	}}
	never := corev1.ContainerRestartPolicyNever
	pods := boat.kube.CoreV1().Pods(ns)
	_, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			Resources: &whole,
			InitContainers: []corev1.Container{{
				Name: "init", Image: image, Command: []string{"sh", "-c", grown}, Resources: amounts("16Mi"),
			}},
			Containers: []corev1.Container{{Name: "main", Image: image, RestartPolicy: &never, RestartPolicyRules: rules}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, done func(s *corev1.PodStatus) bool) {
		t.Helper()
		eventually(ctx, t, what, func() (bool, error) {
			p, err := pods.Get(ctx, "p", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return done(&p.Status), fmt.Errorf("status %+v", p.Status)
		})
	}
	resize := func(patch string) {
		t.Helper()
		if _, err := pods.Patch(ctx, "p", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
			t.Fatal(err)
		}
	}
	until("the init container runs", func(s *corev1.PodStatus) bool {
		return len(s.InitContainerStatuses) == 1 && s.InitContainerStatuses[0].State.Running != nil
	})
	resize(`{"spec":{"initContainers":[{"name":"init","resources":{"requests":{"memory":"32Mi"},"limits":{"memory":"32Mi"}}}]}}`)
	until("the pod runs", func(s *corev1.PodStatus) bool { return s.Phase == corev1.PodRunning })
	resize(`{"spec":{"resources":{"requests":{"memory":"128Mi"},"limits":{"memory":"128Mi"}}}}`)
	until("the pod is resized", func(s *corev1.PodStatus) bool {
		return s.AllocatedResources.Memory().String() == "128Mi" && s.Resources.Limits.Memory().String() == "128Mi"
	})
}
