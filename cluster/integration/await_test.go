package integration

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// typed is a client for all kinds of the API.
func typed(t *testing.T, s *runtime.Scheme) client.WithWatch {
	t.Helper()
	if s == nil {
		s = scheme.Scheme
	}
	c, err := client.NewWithWatch(boat.config, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// await watches an object until it is as wanted, and returns it as it is then.
func await[T client.Object](ctx context.Context, t *testing.T, c client.WithWatch, list client.ObjectList, obj T, wanted func(T) bool) T {
	t.Helper()
	last := obj
	_, err := toolswatch.UntilWithSync(ctx, only(c, list, obj), obj, nil, func(e watch.Event) (bool, error) {
		if e.Type == watch.Deleted {
			return false, nil
		}
		last = e.Object.(T)
		return wanted(last), nil
	})
	if err != nil {
		t.Fatalf("%T %s never became as wanted: %v; it is %+v", obj, obj.GetName(), err, last)
	}
	return last
}

// awaitEnd watches an object until it is gone.
func awaitEnd(ctx context.Context, t *testing.T, c client.WithWatch, list client.ObjectList, obj client.Object) {
	t.Helper()
	uid := obj.GetUID()
	gone := func(store cache.Store) (bool, error) {
		got, ok, err := store.Get(obj)
		return !ok || got.(client.Object).GetUID() != uid, err
	}
	_, err := toolswatch.UntilWithSync(ctx, only(c, list, obj), obj, gone, func(e watch.Event) (bool, error) {
		return e.Type == watch.Deleted, nil
	})
	if err != nil {
		t.Fatalf("%T %s is still there: %v", obj, obj.GetName(), err)
	}
}

// only lists and watches one object.
func only(c client.WithWatch, list client.ObjectList, obj client.Object) cache.ListerWatcher {
	ask := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{
			Namespace: obj.GetNamespace(), FieldSelector: fields.OneTermEqualSelector("metadata.name", obj.GetName()), Raw: &o,
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l := list.DeepCopyObject().(client.ObjectList)
			return l, c.List(ctx, l, ask(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list.DeepCopyObject().(client.ObjectList), ask(o))
		},
	}
}
