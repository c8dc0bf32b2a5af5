package namespace

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-project/coracle/cluster/controllers/kinds"
)

// finalizerWait is how long finalizers of others are thought to need.
const finalizerWait = 15 * time.Second

var podsResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// remains is what a round of deleting left in a namespace, and what went wrong.
type remains struct {
	// wait is the longest time that something left is thought to need, 0 if nothing is left.
	wait time.Duration

	counts     map[schema.GroupVersionResource]int
	finalizers map[string]int
	discovery  error
	failures   []error
	// podsLeft: the round ended before anything but pods was touched.
	podsLeft bool
}

// deleteContent deletes what is in a namespace and returns what is still there, with the errors of
// all kinds joined.
func (c *controller) deleteContent(ctx context.Context, ns *corev1.Namespace) (*remains, error) {
	left := &remains{counts: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
	table, err := kinds.Discover(c.set.Kube.Discovery())
	left.discovery = err
	if table == nil {
		return left, err
	}
	var errs []error
	note := func(err error) {
		if err != nil {
			left.failures = append(left.failures, err)
			errs = append(errs, err)
		}
	}
	var others []kinds.Resource
	for r := range table.With("delete") {
		switch {
		case !r.Namespaced:
		case r.GroupVersionResource == podsResource:
			note(c.deleteKind(ctx, r, ns, left))
		default:
			others = append(others, r)
		}
	}
	if left.counts[podsResource] > 0 {
		left.podsLeft = true
		return left, errors.Join(append(errs, left.discovery)...)
	}
	for _, r := range others {
		note(c.deleteKind(ctx, r, ns, left))
	}
	return left, errors.Join(append(errs, left.discovery)...)
}

// deleteKind deletes what is in a namespace of one kind, and adds what is still there to left.
func (c *controller) deleteKind(ctx context.Context, r kinds.Resource, ns *corev1.Namespace, left *remains) error {
	client := c.metadata.Resource(r.GroupVersionResource).Namespace(ns.Name)
	if !r.Can("list") { // nothing can be said of what remains
		return c.deleteBlindly(ctx, r, ns.Name)
	}
	before, err := client.List(ctx, metav1.ListOptions{Limit: 1})
	if unsupported(err) || err == nil && len(before.Items) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	var grace time.Duration
	if r.GroupVersionResource == podsResource {
		if grace, err = c.podsGrace(ctx, ns); err != nil {
			return err
		}
	}
	left.wait = max(left.wait, grace)
	if r.Can("deletecollection") {
		err = client.DeleteCollection(ctx, inBackground(), metav1.ListOptions{})
	}
	if !r.Can("deletecollection") || unsupported(err) {
		err = c.deleteEach(ctx, r, ns.Name)
	}
	if err != nil {
		return err
	}
	after, err := client.List(ctx, metav1.ListOptions{})
	if err != nil || len(after.Items) == 0 {
		return err
	}
	left.counts[r.GroupVersionResource] = len(after.Items)
	finalized := false
	for _, object := range after.Items {
		for _, finalizer := range object.Finalizers {
			left.finalizers[finalizer]++
			finalized = true
		}
	}
	switch {
	case grace > 0:
	case finalized:
		left.wait = max(left.wait, finalizerWait)
	default:
		return fmt.Errorf("unexpected items still remain in namespace: %s for gvr: %v", ns.Name, r.GroupVersionResource)
	}
	return nil
}

// deleteEach deletes what is in a namespace of a kind that cannot be deleted as a collection.
func (c *controller) deleteEach(ctx context.Context, r kinds.Resource, namespace string) error {
	client := c.metadata.Resource(r.GroupVersionResource).Namespace(namespace)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, object := range list.Items {
		err := client.Delete(ctx, object.Name, inBackground())
		if err != nil && !unsupported(err) {
			return err
		}
	}
	return nil
}

// deleteBlindly deletes a collection that cannot be listed.
func (c *controller) deleteBlindly(ctx context.Context, r kinds.Resource, namespace string) error {
	if !r.Can("deletecollection") {
		return nil
	}
	err := c.metadata.Resource(r.GroupVersionResource).Namespace(namespace).DeleteCollection(ctx, inBackground(), metav1.ListOptions{})
	if unsupported(err) {
		return nil
	}
	return err
}

// podsGrace returns the longest grace period of the pods that still run, 0 when it should have
// passed since the namespace was marked.
func (c *controller) podsGrace(ctx context.Context, ns *corev1.Namespace) (time.Duration, error) {
	pods, err := c.set.Kube.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	var longest time.Duration
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && pod.Spec.TerminationGracePeriodSeconds != nil {
			longest = max(longest, time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second)
		}
	}
	if time.Since(ns.DeletionTimestamp.Time) >= longest {
		return 0, nil
	}
	return longest, nil
}

func inBackground() metav1.DeleteOptions {
	policy := metav1.DeletePropagationBackground
	return metav1.DeleteOptions{PropagationPolicy: &policy}
}

// unsupported reports whether the server has no such verb for the kind, or has lost the kind.
func unsupported(err error) bool {
	return apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err)
}
