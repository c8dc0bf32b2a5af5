package frame

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// Regression: each conflict of a first try was a warning, and the second try had nothing to say.
func TestAFirstConflictIsNoWarning(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("changed"))
	for name, tc := range map[string]struct {
		err   error
		tries int
		want  slog.Level
	}{
		"a first conflict":  {conflict, 0, slog.LevelDebug},
		"another conflict":  {conflict, 1, slog.LevelWarn},
		"any other failure": {errors.New("no"), 0, slog.LevelWarn},
	} {
		if got := levelOf(tc.err, tc.tries); got != tc.want {
			t.Errorf("%s: logged as %s, want %s", name, got, tc.want)
		}
	}
}

// A sync that panics is tried again, and other keys are worked on, also where upstream's own loops
// survive panics (coracle-kube sets that).
func TestAPanicIsAFailureOfItsKeyOnly(t *testing.T) {
	for _, crash := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			defer func(before bool) { utilruntime.ReallyCrash = before }(utilruntime.ReallyCrash)
			utilruntime.ReallyCrash = crash
			tries := map[string]int{}
			c := New("test", 1, slog.New(slog.DiscardHandler), func(_ context.Context, key string) error {
				tries[key]++
				if key == "odd" && tries[key] < 3 {
					panic("odd object")
				}
				return nil
			})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				c.Run(ctx)
			}()
			c.Add("odd")
			c.Add("plain")
			time.Sleep(time.Minute)
			synctest.Wait()
			if tries["odd"] != 3 || tries["plain"] != 1 {
				t.Errorf("crash %v: tried %v", crash, tries)
			}
			stop()
			<-ended
		})
	}
}

// Regression: client-go's WaitForCacheSync looks every 100 ms, so each controller rested that long
// at the start of a cluster.
func TestWorkBeginsWhenInformersHaveSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
		factory := informers.NewSharedInformerFactory(fake.NewClientset(pod), 0)
		informer := factory.Core().V1().Pods().Informer()
		ctx, stop := context.WithCancel(t.Context())
		factory.Start(ctx.Done())
		synctest.Wait()
		worked := make(chan time.Time, 1)
		c := New("test", 1, slog.New(slog.DiscardHandler), func(context.Context, string) error {
			worked <- time.Now()
			return nil
		})
		c.Watch(informer, Self)
		began, ended := time.Now(), make(chan struct{})
		go func() {
			defer close(ended)
			c.Run(ctx)
		}()
		if rested := (<-worked).Sub(began); rested != 0 {
			t.Errorf("the first sync was %v after the start", rested)
		}
		stop()
		<-ended
		factory.Shutdown()
	})
}
