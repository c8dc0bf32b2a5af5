package direct

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/utils/ptr"
)

// pods is a storage whose watches are the test's.
type pods struct {
	rest.Lister
	watch watch.Interface
}

func (pods) New() runtime.Object { return &core.Pod{} }
func (pods) Destroy()            {}
func (p pods) Watch(context.Context, *metainternalversion.ListOptions) (watch.Interface, error) {
	return p.watch, nil
}

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

func storagesOf(t *testing.T, ended context.Context, p rest.Storage) *Storages {
	t.Helper()
	s := New(ended)
	group := genericapiserver.APIGroupInfo{VersionedResourcesStorageMap: map[string]map[string]rest.Storage{"v1": {"pods": p}}}
	if err := s.Add(&group); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReadsWaitUntilStoragesAreOpen(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	s := storagesOf(t, ended, pods{watch: watch.NewFake()})
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := (source{s, podKind}).WatchWithContext(gone, metav1.ListOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a reader that has gone: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		w, err := source{s, podKind}.Watch(metav1.ListOptions{})
		if err == nil {
			w.Stop()
		}
		got <- err
	}()
	s.Open()
	if err := <-got; err != nil {
		t.Error(err)
	}
	secrets := source{s, schema.GroupVersionKind{Version: "v1", Kind: "Secret"}}
	if _, err := secrets.List(metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "Kind=Secret: it is not served") {
		t.Errorf("a kind without storage: %v", err)
	}
	end()
	if _, err := (source{s, podKind}).Watch(metav1.ListOptions{}); !errors.Is(err, ErrStopped) {
		t.Errorf("an open server that has stopped: %v", err)
	}
	if _, err := (source{New(ended), podKind}).List(metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "has stopped") {
		t.Errorf("a server that has stopped: %v", err)
	}
}

// A watch ends with its reader, after its time, with the server, and with the storage's watch, also
// while an event waits to be read.
func TestWatchEnds(t *testing.T) {
	const limit = 300 // seconds
	for name, how := range map[string]func(w watch.Interface, end context.CancelFunc, from *watch.FakeWatcher){
		"by its reader":    func(w watch.Interface, _ context.CancelFunc, _ *watch.FakeWatcher) { w.Stop(); w.Stop() },
		"after its time":   func(watch.Interface, context.CancelFunc, *watch.FakeWatcher) { time.Sleep(limit * time.Second) },
		"by the server":    func(_ watch.Interface, end context.CancelFunc, _ *watch.FakeWatcher) { end() },
		"with the storage": func(w watch.Interface, _ context.CancelFunc, from *watch.FakeWatcher) { <-w.ResultChan(); from.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended, end := context.WithCancel(t.Context())
				defer end()
				from := watch.NewFake()
				s := storagesOf(t, ended, pods{watch: from})
				s.Open()
				began := time.Now()
				w, err := source{s, podKind}.Watch(metav1.ListOptions{TimeoutSeconds: ptr.To(int64(limit))})
				if err != nil {
					t.Fatal(err)
				}
				from.Add(&core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
				how(w, end, from)
				for range w.ResultChan() { // until it is closed
				}
				if took := time.Since(began); (took != 0) != (name == "after its time") {
					t.Errorf("it took %v", took)
				}
				end()
				s.Wait()
				if !from.IsStopped() {
					t.Error("the storage's watch goes on")
				}
			})
		})
	}
}

func TestEvents(t *testing.T) {
	from := watch.NewFake()
	s := storagesOf(t, t.Context(), pods{watch: from})
	s.Open()
	w, err := source{s, podKind}.Watch(metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	from.Modify(&core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: core.PodSpec{NodeName: "n"}})
	e := <-w.ResultChan()
	if p, ok := e.Object.(*corev1.Pod); !ok || e.Type != watch.Modified || p.Name != "a" || p.Spec.NodeName != "n" || p.Kind != "" {
		t.Errorf("a pod comes as %+v", e)
	}
	gone := &metav1.Status{Reason: metav1.StatusReasonExpired}
	from.Error(gone)
	if e := <-w.ResultChan(); e.Type != watch.Error || e.Object != gone {
		t.Errorf("an error comes as %+v", e)
	}
	from.Add(&core.Secret{}) // not what the storage says it has
	e = <-w.ResultChan()
	if status, ok := e.Object.(*metav1.Status); !ok || e.Type != watch.Error || status.Reason != metav1.StatusReasonInternalError {
		t.Errorf("what is no pod comes as %+v", e)
	}
}
