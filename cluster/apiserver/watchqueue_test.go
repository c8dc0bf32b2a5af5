package apiserver

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
)

// sharedPod is an object as the watch cache hands it to several watches.
type sharedPod struct{ *corev1.Pod }

func (s sharedPod) GetObject() runtime.Object { return s.Pod }

func (s sharedPod) CacheEncode(_ runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	return encode(s.Pod, w)
}

// changes is a watch that has no room, and sends numbered changes.
type changes struct {
	*watch.FakeWatcher
	sent int
}

// send sends n changes, in their order, when they are taken.
func (c *changes) send(n int, shared bool) {
	for range n {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(c.sent)}}
		if c.sent++; shared {
			c.Add(sharedPod{p})
		} else {
			c.Add(p)
		}
	}
}

// wantChanges takes n changes out of a queue, beginning with number first.
func wantChanges(t *testing.T, q *queue, first, n int) {
	t.Helper()
	for i := first; i < first+n; i++ {
		e, ok := <-q.ResultChan()
		if !ok {
			t.Fatalf("the queue ends before change %d", i)
		}
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			p = e.Object.(sharedPod).Pod
		}
		if p.Name != fmt.Sprint(i) {
			t.Fatalf("change %s instead of %d", p.Name, i)
		}
	}
}

func TestQueueTakesUpToItsLimit(t *testing.T) {
	const limit = 2 * queueCopies
	for name, c := range map[string]struct {
		shared bool
		room   int
	}{"shared": {true, limit + queueRoom}, "copies": {false, queueCopies + queueRoom}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from := &changes{FakeWatcher: watch.NewFake()}
				q := newQueue(t.Context(), from, limit)
				defer q.Stop()
				const more = 3
				done := false
				go func() {
					from.send(c.room, c.shared)
					done = true
					from.send(more, c.shared)
				}()
				synctest.Wait()
				if !done || from.sent != c.room+1 { // one is being sent
					t.Fatalf("%d changes wait, want %d", from.sent-1, c.room)
				}
				wantChanges(t, q, 0, c.room+more)
			})
		})
	}
}

func TestQueueHandsOnWhatWaitsWhenItsWatchEnds(t *testing.T) {
	const n = 2*queueRoom + 3
	from := &changes{FakeWatcher: watch.NewFake()}
	q := newQueue(t.Context(), from, n)
	defer q.Stop()
	from.send(n, true)
	from.FakeWatcher.Stop()
	wantChanges(t, q, 0, n)
	if e, ok := <-q.ResultChan(); ok {
		t.Errorf("after the last change: %v", e)
	}
}

// A queue that no one reads any more ends, and its watch: when it is stopped, or with its request.
func TestQueueEnds(t *testing.T) {
	for name, end := range map[string]func(*queue, context.CancelFunc){
		"stopped twice":    func(q *queue, _ context.CancelFunc) { q.Stop(); q.Stop() },
		"request has gone": func(_ *queue, leave context.CancelFunc) { leave() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			from := &changes{FakeWatcher: watch.NewFake()}
			q := newQueue(ctx, from, 1)
			from.send(queueRoom+1, true) // all that it takes
			end(q, leave)
			for range q.ResultChan() { // until it is closed
			}
			if !from.IsStopped() {
				t.Error("the watch goes on")
			}
		})
	}
}

// A watch that is not read keeps more than the watch cache has room for. Without a queue the cache
// ends it.
func TestUnreadWatchIsKept(t *testing.T) {
	o, err := testOptions(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, stop := serve(t, o)
	defer stop()
	pods := cacheOf(t, s, "pods")
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	ns := namespace(t, client)
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
		if got++; got == n {
			t.Fatalf("a watch without a queue has got all %d changes: this test tells nothing", n)
		}
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
		{"one pod", pod.MatchPod(labels.Everything(), fields.OneTermEqualSelector("metadata.name", "p")), false},
		{"all slices", resourceslice.Match(labels.Everything(), fields.Everything()), true},
		{"all nodes, which have no index", node.MatchNode(labels.Everything(), fields.Everything()), false},
	} {
		if got := needsQueue(storage.ListOptions{Predicate: c.of}); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
