package integration

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"
)

// configMaps makes objects a-0000, a-0001, … many at a time.
func configMaps(ctx context.Context, t *testing.T, ns string, n int) {
	t.Helper()
	todo := make(chan int)
	errs := make(chan error, n)
	const workers = 16
	for range workers {
		go func() {
			for i := range todo {
				_, err := boat.kube.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("a-%04d", i), Labels: map[string]string{"odd": strconv.FormatBool(i%2 == 1)}},
				}, metav1.CreateOptions{})
				errs <- err
			}
		}()
	}
	go func() {
		defer close(todo)
		for i := range n {
			todo <- i
		}
	}()
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// All pages of a list are of one moment, whatever is written meanwhile.
func TestPages(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	const n, limit = 600, 47
	configMaps(ctx, t, ns, n)
	maps := boat.kube.CoreV1().ConfigMaps(ns)
	eventually(ctx, t, "the root CA's ConfigMap, which a controller makes, is there", func() (bool, error) {
		_, err := maps.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil, err
	})

	all, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var paged []string
	var version string
	options := metav1.ListOptions{Limit: limit}
	for page := 0; ; page++ {
		list, err := maps.List(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		if page == 0 {
			version = list.ResourceVersion
		}
		if list.ResourceVersion != version {
			t.Errorf("page %d is of version %s, the first of %s", page, list.ResourceVersion, version)
		}
		for _, cm := range list.Items {
			paged = append(paged, cm.Name)
		}
		if list.Continue == "" {
			break
		}
		if len(list.Items) != limit || list.RemainingItemCount == nil || *list.RemainingItemCount != int64(len(all.Items)-len(paged)) {
			t.Errorf("page %d has %d items and says that %v remain of %d", page, len(list.Items), list.RemainingItemCount, len(all.Items)-len(paged))
		}
		options.Continue = list.Continue
		// Behind and before where we are.
		for _, name := range []string{fmt.Sprintf("0-%d", page), fmt.Sprintf("z-%d", page)} {
			if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := maps.Delete(ctx, fmt.Sprintf("a-%04d", n-1-page), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(paged) != len(all.Items) {
		t.Errorf("%d objects in pages, %d in one", len(paged), len(all.Items))
	}
	for i := range min(len(paged), len(all.Items)) {
		if paged[i] != all.Items[i].Name {
			t.Fatalf("object %d is %s in pages and %s in one", i, paged[i], all.Items[i].Name)
		}
	}

	// With a selector, pages are still full, and client-go's pager finds all.
	odd := 0
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list, err := maps.List(ctx, o)
		if err == nil && list.Continue != "" && len(list.Items) != limit {
			t.Errorf("a page has %d items", len(list.Items))
		}
		return list, err
	})
	p.PageSize = limit
	count := func(runtime.Object) error { odd++; return nil }
	if err := p.EachListItem(ctx, metav1.ListOptions{LabelSelector: "odd=true"}, count); err != nil {
		t.Fatal(err)
	}
	if now, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "odd=true"}); err != nil || len(now.Items) != odd {
		t.Errorf("the pager found %d, there are %d, %v", odd, len(now.Items), err)
	}

	if _, err := maps.List(ctx, metav1.ListOptions{Limit: 5, Continue: "garbage"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a continue token of garbage: %v", err)
	}
	if _, err := maps.List(ctx, metav1.ListOptions{Limit: 5, Continue: options.Continue, ResourceVersion: "1"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a continue token with a version next to it: %v", err)
	}
}

// A watch that asks for what is there gets all of it, then a bookmark that says so, then what
// happens, and before it ends a bookmark to go on from.
func TestBookmarks(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	maps := boat.kube.CoreV1().ConfigMaps(ns)
	configMaps(ctx, t, ns, 5)
	open := func(o metav1.ListOptions) watch.Interface {
		t.Helper()
		o.AllowWatchBookmarks, o.LabelSelector = true, "odd"
		w, err := maps.Watch(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	next := func(w watch.Interface) (watch.EventType, *corev1.ConfigMap) {
		t.Helper()
		select {
		case e, ok := <-w.ResultChan():
			cm, is := e.Object.(*corev1.ConfigMap)
			if !ok || !is {
				t.Fatalf("the watch ended, or failed: %v", e.Object)
			}
			return e.Type, cm
		case <-ctx.Done():
			t.Fatal("no event")
		}
		return "", nil
	}
	// happens is the next event that is no bookmark: those come at any time.
	happens := func(w watch.Interface) (watch.EventType, *corev1.ConfigMap) {
		t.Helper()
		for {
			if kind, cm := next(w); kind != watch.Bookmark {
				return kind, cm
			}
		}
	}
	w := open(metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	for i := range 5 {
		if kind, cm := next(w); kind != watch.Added || cm.Name != fmt.Sprintf("a-%04d", i) {
			t.Errorf("event %d is %s %s", i, kind, cm.Name)
		}
	}
	kind, mark := next(w)
	if kind != watch.Bookmark || mark.Annotations[metav1.InitialEventsAnnotationKey] != "true" || mark.Name != "" {
		t.Errorf("after what was there comes %s %v", kind, mark)
	}
	if err := maps.Delete(ctx, "a-0003", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kind, gone := happens(w)
	if kind != watch.Deleted || gone.Name != "a-0003" {
		t.Errorf("then %s %s", kind, gone.Name)
	}
	// A busy server may miss the moment before a watch's end: another watch's bookmark is as good.
	var last *corev1.ConfigMap
	for last == nil && ctx.Err() == nil {
		ending := open(metav1.ListOptions{ResourceVersion: gone.ResourceVersion, TimeoutSeconds: ptr.To[int64](4)})
		for e := range ending.ResultChan() {
			cm, is := e.Object.(*corev1.ConfigMap)
			if !is || e.Type != watch.Bookmark || cm.Annotations[metav1.InitialEventsAnnotationKey] != "" {
				t.Fatalf("before its end the watch sends %s %v", e.Type, e.Object)
			}
			last = cm
		}
	}
	if last == nil {
		t.Fatal("no watch sends a bookmark before its end")
	}
	if a, b := revision(t, gone), revision(t, last); b < a {
		t.Errorf("the bookmark is at %d, before the last event, %d", b, a)
	}
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"odd": ""}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if kind, cm := happens(open(metav1.ListOptions{ResourceVersion: last.ResourceVersion})); kind != watch.Added || cm.Name != "b" {
		t.Errorf("a watch from the bookmark begins with %s %s", kind, cm.Name)
	}
}

// revision is an object's resourceVersion as the number that it is.
func revision(t *testing.T, obj metav1.Object) int {
	t.Helper()
	n, err := strconv.Atoi(obj.GetResourceVersion())
	if err != nil {
		t.Fatal(err)
	}
	return n
}
