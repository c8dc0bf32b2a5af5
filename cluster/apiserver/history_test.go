package apiserver

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// A watch cache keeps as many changes as it may and no more, however quickly they come.
func TestHistoryIsBounded(t *testing.T) {
	const limit = 128
	o, err := testOptions(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.history = limit
	s, stop := serve(t, o)
	defer stop()
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	maps := client.CoreV1().ConfigMaps(namespace(t, client))
	m, err := maps.Create(t.Context(), mapOf("m", 1), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	versions := []string{m.ResourceVersion}
	for i := range 2 * limit {
		m.Data["change"] = string(rune('a' + i%2))
		if m, err = maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		versions = append(versions, m.ResourceVersion)
	}
	// from tells what comes first after a version; the cache has seen the last one.
	from := func(version string) watch.Event {
		t.Helper()
		if _, err := maps.List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		if apierrors.IsResourceExpired(err) {
			return watch.Event{Type: watch.Error}
		}
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		return <-w.ResultChan()
	}
	if e := from(versions[len(versions)-limit+1]); e.Type != watch.Modified {
		t.Errorf("of the last %d changes, the first is answered with %v %v", limit-1, e.Type, e.Object)
	}
	if e := from(versions[len(versions)-limit-10]); e.Type != watch.Error {
		t.Errorf("more than %d changes are kept: %v %v", limit, e.Type, e.Object)
	}
}

// The history of many objects is longer, so that a client that has listed them all can watch them.
func TestHistoryGrowsWithObjects(t *testing.T) {
	const least, objects = 100, 1200 // no watch cache keeps fewer than 100
	want := historyOf(objects, least)
	if want <= least {
		t.Fatalf("%d changes are kept for %d objects", want, objects)
	}
	if got := historyOf(objects, 2*want); got != 2*want {
		t.Errorf("%d changes are kept, at least %d are wanted", got, 2*want)
	}
	o, err := testOptions(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.history = least
	o.calmPeriod = time.Hour // periods end when the test says so
	s, stop := serve(t, o)
	defer stop()
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	maps := client.CoreV1().ConfigMaps(namespace(t, client))
	var versions []string
	create := func(n int) {
		t.Helper()
		for range n {
			m, err := maps.Create(t.Context(), mapOf(fmt.Sprintf("m-%d", len(versions)), 1), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			versions = append(versions, m.ResourceVersion)
		}
		if _, err := maps.List(t.Context(), metav1.ListOptions{}); err != nil { // the cache has seen them
			t.Fatal(err)
		}
	}
	// kept says whether the last n changes are kept.
	kept := func(n int) bool {
		t.Helper()
		w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: versions[len(versions)-1-n]})
		if apierrors.IsResourceExpired(err) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		switch e := <-w.ResultChan(); e.Type {
		case watch.Added:
			return true
		case watch.Error:
			if apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
				return false
			}
			fallthrough
		default:
			t.Fatalf("the watch begins with %v %v", e.Type, e.Object)
			return false
		}
	}
	create(objects)
	if kept(want - 1) {
		t.Fatalf("%d changes are kept before the end of the period: this test tells nothing", want-1)
	}
	s.caches.endPeriod(t.Context())
	create(2 * want)
	if !kept(want - 1) {
		t.Errorf("the last %d changes are not kept", want-1)
	}
	if kept(want + 10) {
		t.Errorf("more than %d changes are kept", want)
	}
}

// A watch cache that begins with many objects keeps as many changes at once.
func TestHistoryFitsObjectsAtStart(t *testing.T) {
	const least, objects = 100, 1200
	o, err := testOptions(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.history = least
	s, stop := serve(t, o)
	defer stop()
	maps := cacheOf(t, s, "configmaps")
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	ns := namespace(t, client)
	for i := range objects {
		if _, err := client.CoreV1().ConfigMaps(ns).Create(t.Context(), mapOf(fmt.Sprintf("m-%d", i), 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	again, err := newCached(maps.resource, least, maps.open)
	if err != nil {
		t.Fatal(err)
	}
	defer again.stop()
	if got := historyBound(again.current.Load().cache); got != least {
		t.Fatalf("a new cache keeps %d changes, want %d", got, least)
	}
	if err := again.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := int64(historyOf(objects, least))
	if got := historyBound(again.current.Load().cache); got < want || got > want+want/4 { // there are some others
		t.Errorf("with %d objects, %d changes are kept, want about %d", objects, got, want)
	}
}

// historyBound is how many changes a watch cache keeps at most.
func historyBound(c *cacher.Cacher) int64 {
	return reflect.ValueOf(c).Elem().FieldByName("watchCache").Elem().FieldByName("upperBoundCapacity").Int()
}
