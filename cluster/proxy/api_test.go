package proxy

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testContext(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.WithoutCancel(t.Context()))
}

// create puts an object into the API, in place of one of that name.
func (c *testCluster) create(object any) {
	c.t.Helper()
	ctx, create, update := c.t.Context(), metav1.CreateOptions{}, metav1.UpdateOptions{}
	var err error
	switch o := object.(type) {
	case *corev1.Node:
		_, err = c.api.CoreV1().Nodes().Create(ctx, o, create)
	case *corev1.Pod:
		_, err = c.api.CoreV1().Pods(o.Namespace).Create(ctx, o, create)
	case *corev1.Service:
		if _, err = c.api.CoreV1().Services(o.Namespace).Create(ctx, o, create); apierrors.IsAlreadyExists(err) {
			_, err = c.api.CoreV1().Services(o.Namespace).Update(ctx, o, update)
		}
	case *discoveryv1.EndpointSlice:
		if _, err = c.api.DiscoveryV1().EndpointSlices(o.Namespace).Create(ctx, o, create); apierrors.IsAlreadyExists(err) {
			_, err = c.api.DiscoveryV1().EndpointSlices(o.Namespace).Update(ctx, o, update)
		}
	default:
		c.t.Fatalf("no object of the tests: %T", object)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}
