package freshness_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
)

func TestShown(t *testing.T) {
	a := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "1", ResourceVersion: "5"}}
	leaving := a.DeepCopy()
	now := metav1.Now()
	leaving.DeletionTimestamp, leaving.ResourceVersion = &now, "8"
	reborn := a.DeepCopy()
	reborn.UID = "2"

	for name, c := range map[string]struct {
		write func(w *freshness.Writes, store cache.Store)
		seen  func(store cache.Store)
		shown bool
	}{
		"nothing written": {func(*freshness.Writes, cache.Store) {}, func(cache.Store) {}, true},
		"an older version": {
			func(w *freshness.Writes, s cache.Store) { w.Wrote("k", s, "10") },
			func(s cache.Store) { a.ResourceVersion = "9"; _ = s.Add(a) }, false,
		},
		"that version": {
			func(w *freshness.Writes, s cache.Store) { w.Wrote("k", s, "10") },
			func(s cache.Store) { a.ResourceVersion = "10"; _ = s.Add(a) }, true,
		},
		"a later one, with another digit": {
			func(w *freshness.Writes, s cache.Store) { w.Wrote("k", s, "99") },
			func(s cache.Store) { a.ResourceVersion = "100"; _ = s.Add(a) }, true,
		},
		"the first of two": {
			func(w *freshness.Writes, s cache.Store) { w.Wrote("k", s, "12"); w.Wrote("k", s, "10") },
			func(s cache.Store) { a.ResourceVersion = "11"; _ = s.Add(a) }, false,
		},
		"another key's": {
			func(w *freshness.Writes, s cache.Store) { w.Wrote("other", s, "12") },
			func(cache.Store) {}, true,
		},
		"a version of no number": {
			func(w *freshness.Writes, s cache.Store) { w.Wrote("k", s, "odd") },
			func(cache.Store) {}, true,
		},
		"deleted, still whole": {
			func(w *freshness.Writes, s cache.Store) { w.Deleted("k", s, a) },
			func(s cache.Store) { _ = s.Add(a) }, false,
		},
		"deleted, on its way out": {
			func(w *freshness.Writes, s cache.Store) { w.Deleted("k", s, a) },
			func(s cache.Store) { _ = s.Add(leaving) }, true,
		},
		"deleted and gone": {
			func(w *freshness.Writes, s cache.Store) { w.Deleted("k", s, a) },
			func(cache.Store) {}, true,
		},
		"deleted and replaced": {
			func(w *freshness.Writes, s cache.Store) { w.Deleted("k", s, a) },
			func(s cache.Store) { _ = s.Add(reborn) }, true,
		},
		"forgotten": {
			func(w *freshness.Writes, s cache.Store) { w.Wrote("k", s, "99"); w.Forget("k") },
			func(cache.Store) {}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := cache.NewStore(cache.MetaNamespaceKeyFunc)
			first := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", ResourceVersion: "1"}}
			if err := store.Add(first); err != nil {
				t.Fatal(err)
			}
			w := freshness.New(slog.New(slog.DiscardHandler))
			c.write(w, store)
			c.seen(store)
			if got := w.Shown("k"); got != c.shown {
				t.Errorf("Shown = %v", got)
			}
		})
	}
}

func TestGuard(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	see := func(version string) {
		if err := store.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: version}}); err != nil {
			t.Fatal(err)
		}
	}
	see("1")
	var synced, delayed int
	var result error
	w := freshness.New(slog.New(slog.DiscardHandler))
	sync := w.Guard(func(context.Context, string) error { synced++; return result },
		func(_ string, d time.Duration) {
			if d == freshness.Patience {
				delayed++
			}
		})
	check := func(what string, wantErr error, wantSynced, wantDelayed int) {
		t.Helper()
		if err := sync(t.Context(), "k"); err != wantErr || synced != wantSynced || delayed != wantDelayed {
			t.Errorf("%s: err %v, %d syncs, %d delays", what, err, synced, delayed)
		}
	}
	check("fresh", nil, 1, 0)
	w.Wrote("k", store, "2")
	check("behind", nil, 1, 1)
	see("2")
	check("caught up", nil, 2, 1)
	result = apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errors.New("modified"))
	check("conflict", nil, 3, 2)
	result = errors.New("boom")
	check("error", result, 4, 2)
}
