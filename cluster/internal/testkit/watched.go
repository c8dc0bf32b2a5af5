package testkit

import (
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Watched has the returned function wait for the first watch of a resource ("pods") of a fake
// server. That server never tells a watch of what was deleted before the watch and after its list,
// so a test that deletes waits first. Watched is called before the informers start.
func Watched(kube *fake.Clientset, resource string) (await func(testing.TB)) {
	watched := make(chan struct{})
	tell := sync.OnceFunc(func() { close(watched) })
	kube.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, watch.Interface, error) {
		var options metav1.ListOptions
		if a, ok := action.(clienttesting.WatchActionImpl); ok {
			options = a.ListOptions
		}
		events, err := kube.Tracker().Watch(action.GetResource(), action.GetNamespace(), options)
		if err == nil {
			tell()
		}
		return true, events, err
	})
	return func(t testing.TB) {
		t.Helper()
		select {
		case <-watched:
		case <-time.After(Patience):
			t.Fatalf("%s are not watched", resource)
		}
	}
}
