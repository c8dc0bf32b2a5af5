package upstream_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// A ReplicationController has as many pods as it says, and takes them along.
func TestReplicationController(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	app := map[string]string{"app": "old"}
	all := c.kube.CoreV1().ReplicationControllers(ns)
	must[*corev1.ReplicationController](t)(all.Create(ctx, &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "old"},
		Spec:       corev1.ReplicationControllerSpec{Replicas: ptr.To[int32](2), Selector: app, Template: ptr.To(template(app))},
	}, metav1.CreateOptions{}))
	for i, replicas := range []int32{2, 5, 1} {
		if i > 0 {
			patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
			must[*corev1.ReplicationController](t)(all.Patch(ctx, "old", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))
		}
		eventually(ctx, t, fmt.Sprint(replicas, " pods are ready"), func() (bool, error) {
			rc, err := all.Get(ctx, "old", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			s, pods := rc.Status, c.podNames(ctx, t, ns)
			return s.ObservedGeneration == rc.Generation && s.ReadyReplicas == replicas && len(pods) == int(replicas),
				fmt.Errorf("status %+v, pods %v", s, pods)
		})
	}
	if err := all.Delete(ctx, "old", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "its pods go", func() (bool, error) {
		pods := c.podNames(ctx, t, ns)
		return len(pods) == 0, fmt.Errorf("pods %v", pods)
	})
}
