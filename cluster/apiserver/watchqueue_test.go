package apiserver

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/pod"
)

func change(i int) watch.Event {
	return watch.Event{Type: watch.Added, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}}
}

// wantChanges takes n changes out of a queue, beginning with number first.
func wantChanges(t *testing.T, q *queue, first, n int) {
	t.Helper()
	for i := first; i < first+n; i++ {
		e, ok := <-q.ResultChan()
		if !ok {
			t.Fatalf("the queue ends before change %d", i)
		}
		if got := e.Object.(*corev1.Pod).Name; got != fmt.Sprint(i) {
			t.Fatalf("change %s instead of %d", got, i)
		}
	}
}

func TestQueueTakesUpToItsLimit(t *testing.T) {
	const limit = 5
	from := watch.NewFake() // without room
	q := newQueue(from, limit)
	defer q.Stop()
	for i := range limit {
		from.Action(change(i).Type, change(i).Object)
	}
	more := make(chan struct{})
	go func() {
		defer close(more)
		from.Action(change(limit).Type, change(limit).Object)
	}()
	select {
	case <-more:
		t.Fatal("more than the limit is taken")
	case e := <-q.ResultChan():
		if got := e.Object.(*corev1.Pod).Name; got != "0" {
			t.Fatalf("change %s first", got)
		}
	}
	<-more
	wantChanges(t, q, 1, limit)
}

func TestQueueHandsOnWhatWaitsWhenItsWatchEnds(t *testing.T) {
	const n = 3
	from := watch.NewFake()
	q := newQueue(from, n)
	defer q.Stop()
	for i := range n {
		from.Action(change(i).Type, change(i).Object)
	}
	from.Stop()
	wantChanges(t, q, 0, n)
	if e, ok := <-q.ResultChan(); ok {
		t.Errorf("after the last change: %v", e)
	}
}

func TestStoppedQueueStopsItsWatch(t *testing.T) {
	from := watch.NewFake()
	q := newQueue(from, 1)
	from.Action(change(0).Type, change(0).Object) // which nobody takes
	q.Stop()
	q.Stop()
	for range q.ResultChan() { // until it is closed; the change may still come
	}
	if !from.IsStopped() {
		t.Error("the watch goes on")
	}
}

// A watch that is not read keeps more than the watch cache has room for. Without a queue the cache
// ends it.
func TestUnreadWatchIsKept(t *testing.T) {
	o, err := testOptions(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var pods *cached
	o.inspect = func(b *build) {
		for c := range b.store.caches.all {
			if c.resource.Resource == "pods" {
				pods = c
			}
		}
	}
	s, stop := serve(t, o)
	defer stop()
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	ns := namespace(t, client)
	if pods == nil {
		t.Fatal("pods have no watch cache")
	}
	all := storage.ListOptions{Recursive: true, Predicate: pod.MatchPod(labels.Everything(), fields.Everything())}
	const n = 200
	open := func(open func(context.Context, string, storage.ListOptions) (watch.Interface, error)) watch.Interface {
		w, err := open(t.Context(), "/pods/"+ns, all)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	kept, bare := open(pods.Watch), open(pods.current.Load().Watch)
	defer kept.Stop()
	defer bare.Stop()
	for i := range n {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%d", i)}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		}}
		if _, err := client.CoreV1().Pods(ns).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		e, ok := <-kept.ResultChan()
		if !ok {
			t.Fatalf("the watch has ended after %d of %d changes", i, n)
		}
		shared, ok := e.Object.(runtime.CacheableObject)
		if !ok {
			t.Fatalf("change %d is %T", i, e.Object)
		}
		if name := shared.GetObject().(*core.Pod).Name; name != fmt.Sprintf("p-%d", i) {
			t.Fatalf("change %d is of %s", i, name)
		}
	}
	got := 0
	for range bare.ResultChan() { // until it is closed
		got++
	}
	if got >= n {
		t.Errorf("a watch without a queue has got all %d changes: this test tells nothing", n)
	}
}

func TestWhatNeedsQueue(t *testing.T) {
	onNode := fields.OneTermEqualSelector("spec.nodeName", "n")
	for _, c := range []struct {
		name string
		of   storage.SelectionPredicate
		want bool
	}{
		{"all pods", pod.MatchPod(labels.Everything(), fields.Everything()), true},
		{"pods without a node", pod.MatchPod(labels.Everything(), fields.OneTermNotEqualSelector("spec.nodeName", "")), true},
		{"the pods of a node", pod.MatchPod(labels.Everything(), onNode), false},
		{"a resource without index", storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}, false},
	} {
		if got := needsQueue(storage.ListOptions{Predicate: c.of}); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
