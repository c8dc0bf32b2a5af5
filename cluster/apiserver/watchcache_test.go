package apiserver

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// heap returns how many bytes of the heap are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what had a finalizer
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func mapOf(name string, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"x": strings.Repeat("x", size)}}
}

// When a burst of changes is over, its memory is given back. Who reads, writes or watches does not
// notice.
// cacheOf returns the watch cache of a server's resource.
func cacheOf(t *testing.T, s *Server, resource string) *cached {
	t.Helper()
	for _, c := range s.caches.list() {
		if c.resource.Resource == resource {
			return c
		}
	}
	t.Fatalf("%s have no watch cache", resource)
	return nil
}

func TestMemoryAfterBurst(t *testing.T) {
	o, err := testOptions(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var etcd *clientv3.Client
	o.inspect = func(b *build) { etcd = b.store.probe }
	o.calmPeriod = time.Hour // periods end when the test says so
	s, stop := serve(t, o)
	defer stop()
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	ns := namespace(t, client)
	maps := client.CoreV1().ConfigMaps(ns)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(ns))
	lister := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(ns)
	informed, forget := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer forget()
	factory.Start(informed.Done())
	factory.WaitForCacheSync(informed.Done())
	awaitInformer := func(what string, of int) {
		t.Helper()
		eventually(t, what, func() (bool, error) {
			all, err := lister.List(labels.Everything())
			return len(all) == of, err
		})
	}

	// The start leaves some 40 MB that are let go of within seconds, which would hide what comes now.
	before, steady := heap(), 0
	eventually(t, "the memory of the start is given back", func() (bool, error) {
		now := heap()
		if steady++; now < before-before/100 {
			steady = 0
		}
		before = min(before, now)
		return steady == 10, nil
	})
	const n, size = 2 * burst, 64 << 10
	for i := range n {
		name := fmt.Sprintf("burst-%d", i)
		if _, err := maps.Create(t.Context(), mapOf(name, size), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.caches.endPeriod(t.Context()) // that of the burst
	if _, err := maps.Create(t.Context(), mapOf("last", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitInformer("the informer sees what came last", 1)
	if held := heap() - before; held < n*size {
		t.Fatalf("upstream's cache holds %d bytes after changes of %d: there is nothing to give back", held, n*size)
	}

	var replaced atomic.Bool
	others, ctx := errgroup.WithContext(t.Context())
	for i := range 3 {
		others.Go(func() error { return useUntil(ctx, &replaced, maps, fmt.Sprintf("meanwhile-%d", i)) })
	}
	s.caches.endPeriod(t.Context())
	replaced.Store(true)
	if err := others.Wait(); err != nil {
		t.Error(err)
	}
	// Reads from the cache that have just ended keep the old one for some seconds, and etcd keeps
	// its last entries.
	eventually(t, "the memory is given back", func() (bool, error) { return heap()-before < n*size/2, nil })
	if _, err := maps.Create(t.Context(), mapOf("after", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitInformer("the informer goes on", 2)

	// The compactor has noted the version at which the burst was over. By the end of the next
	// period it drops older ones.
	var noted *clientv3.GetResponse
	eventually(t, "the compactor has been called", func() (bool, error) {
		noted, err = etcd.Get(t.Context(), "compact_rev_key")
		return err == nil && noted.Count > 0, err
	})
	atVersion := func(version int64) error {
		_, err := etcd.Get(t.Context(), keyPrefix, clientv3.WithRev(version))
		return err
	}
	if err := atVersion(noted.Header.Revision - 1); err != nil {
		t.Errorf("old versions are gone at once: %v", err)
	}
	s.caches.endPeriod(t.Context())
	eventually(t, "the versions of the burst are dropped", func() (bool, error) {
		err := atVersion(noted.Kvs[0].ModRevision - 1)
		return err != nil && strings.Contains(err.Error(), "has been compacted"), err
	})
}

// Regression: a call within another one waited for ever if the cache was replaced just when it
// came: for the replacement, which waited for the outer call.
func TestACallWithinACallWhileTheCacheIsReplaced(t *testing.T) {
	c := &cached{}
	c.current.Store(&generation{})
	replace, replaced := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(replaced)
		for range replace { // as endPeriod does
			old := c.current.Swap(&generation{})
			old.calls.Lock() // waits for the calls
			replaced <- struct{}{}
			old.calls.Unlock()
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20_000 { // the moment is some nanoseconds long
			outer := c.use()
			replace <- struct{}{}
			for c.current.Load() == outer { // a call comes before, while and after it is replaced
				c.use().calls.RUnlock()
			}
			c.use().calls.RUnlock()
			outer.calls.RUnlock()
			<-replaced
		}
		close(replace)
	}()
	select {
	case <-done:
		<-replaced
	case <-time.After(time.Minute):
		t.Fatal("the inner call and the replacement wait for each other")
	}
}

// Memory is given back when caches are replaced, and for some time after that.
func TestAftermath(t *testing.T) {
	var did string
	s := caches{compact: func() { did += "compact " }, free: func() { did += "free " }}
	for i, period := range []struct {
		replaced bool
		want     string
	}{
		{false, ""},
		{true, "compact free "},
		{false, "compact free "},
		{false, "free "},
		{false, "free "},
		{false, "free "},
		{false, ""},
		{true, "compact free "},
		{true, "compact free "}, // of another resource, whose changes ended later
		{false, "compact free "},
		{false, "free "},
		{false, "free "},
		{false, "free "},
		{false, ""},
	} {
		did = ""
		s.calmDown(period.replaced)
		if did != period.want {
			t.Errorf("period %d: did %q, want %q", i, did, period.want)
		}
	}
	s = caches{free: func() { did += "free " }} // its etcd is another's to compact
	did = ""
	for _, replaced := range []bool{true, false, false, false, false, false} {
		s.calmDown(replaced)
	}
	if did != "free free free free free " {
		t.Errorf("did %q", did)
	}
}

// useUntil makes a few changes, and reads until done is set.
func useUntil(ctx context.Context, done *atomic.Bool, maps corev1client.ConfigMapInterface, name string) error {
	const changes = 10 // with a deletion each; few enough for the burst to be over
	for i := 0; i < changes || !done.Load(); i++ {
		if i < changes {
			if _, err := maps.Create(ctx, mapOf(name, 1), metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		if _, err := maps.Get(ctx, name, metav1.GetOptions{}); err != nil && (i < changes || !apierrors.IsNotFound(err)) {
			return err
		}
		for _, version := range []string{"", "0"} { // from etcd's state, from the cache
			if _, err := maps.List(ctx, metav1.ListOptions{ResourceVersion: version}); err != nil {
				return err
			}
		}
		if i < changes {
			if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}
