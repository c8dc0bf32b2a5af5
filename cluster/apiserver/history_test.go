package apiserver

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
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
