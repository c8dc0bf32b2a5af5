// Package podcontrol is how workload controllers create, patch and delete the pods they own: with
// the events that users look for on the owner, and with each write noted for [freshness].
//
// In a namespace that is being deleted nothing can be created any more. That is no error worth
// reporting or repeating, since the owner is about to go as well: such a create does nothing.
package podcontrol

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/controller"

	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
)

// Burst is how many pods a controller creates or deletes in one sync at most.
const Burst = 500

// Control writes pods for the owners of one kind.
type Control struct {
	Kind   schema.GroupVersionKind // of the owners
	Kube   kubernetes.Interface
	Events record.EventRecorder
	Writes *freshness.Writes
	Cache  cache.Store // of pods
}

// Owner is an object that owns pods.
type Owner interface {
	runtime.Object
	metav1.Object
}

func keyOf(owner Owner) string { return cache.MetaObjectToName(owner).String() }

// Create makes a pod of owner from template. Its name starts with prefix, or with the owner's name
// if prefix is empty.
func (c *Control) Create(ctx context.Context, owner Owner, template *corev1.PodTemplateSpec, prefix string) error {
	pod, err := controller.GetPodFromTemplate(template, owner, metav1.NewControllerRef(owner, c.Kind))
	if err != nil {
		return err
	}
	if prefix != "" {
		pod.GenerateName = prefix
	}
	made, err := c.Kube.CoreV1().Pods(owner.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		c.Events.Eventf(owner, corev1.EventTypeWarning, controller.FailedCreatePodReason, "Error creating: %v", err)
		return err
	}
	c.Writes.Wrote(keyOf(owner), c.Cache, made.ResourceVersion)
	c.Events.Eventf(owner, corev1.EventTypeNormal, controller.SuccessfulCreatePodReason, "Created pod: %v", made.Name)
	return nil
}

// Delete asks for pod to be deleted. A pod that is gone already is no error, also if another one
// has its name.
func (c *Control) Delete(ctx context.Context, owner Owner, pod *corev1.Pod) error {
	err := c.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.Events.Eventf(owner, corev1.EventTypeWarning, controller.FailedDeletePodReason, "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	c.Writes.Deleted(keyOf(owner), c.Cache, pod)
	if err == nil {
		c.Events.Eventf(owner, corev1.EventTypeNormal, controller.SuccessfulDeletePodReason, "Deleted pod: %v", pod.Name)
	}
	return nil
}

// Patch sends a strategic merge patch for pod, on behalf of the owner with this key.
func (c *Control) Patch(ctx context.Context, key string, pod *corev1.Pod, patch []byte) error {
	patched, err := c.Kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		c.Writes.Wrote(key, c.Cache, patched.ResourceVersion)
	}
	return err
}

// DeleteAll deletes pods, all at once. It returns how many deletions went well, and the first
// error.
func (c *Control) DeleteAll(ctx context.Context, owner Owner, pods []*corev1.Pod) (int, error) {
	return All(len(pods), func(i int) error { return c.Delete(ctx, owner, pods[i]) })
}

// SlowStart calls do(0) to do(n-1): one call, then two at once, then four, and so on as long as
// all go well. Whatever makes one call fail (a quota, an admission webhook) would most likely fail
// them all, so after a failure the rest is left for a later sync. It returns how many calls went
// well, and the first error.
func SlowStart(n int, do func(i int) error) (int, error) {
	done := 0
	for batch, at := 1, 0; at < n; batch, at = 2*batch, at+batch {
		went, err := All(min(batch, n-at), func(i int) error { return do(at + i) })
		done += went
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// All calls do(0) to do(n-1), all at once. It returns how many went well, and the first error.
func All(n int, do func(i int) error) (int, error) {
	errs := make(chan error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := do(i); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	went := n - len(errs)
	if went == n {
		return n, nil
	}
	return went, <-errs
}
