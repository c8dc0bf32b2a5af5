package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

func podNamed(i int) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint(i))}}
}

// Pods that come and go while the gate stays closed are not kept, those that are there are.
func TestGateLetsGoOfPodsThatAreGone(t *testing.T) {
	h := &framework.Handle{
		Log:        slog.New(slog.DiscardHandler),
		Informers:  informers.NewSharedInformerFactory(fake.NewClientset(), 0),
		Background: func(func(context.Context)) {},
	}
	g := newGate(h, "x", nil)
	const there = 100
	for i := range there {
		if err := h.Informers.Core().V1().Pods().Informer().GetStore().Add(podNamed(i)); err != nil {
			t.Fatal(err)
		}
		g.admit("plugin", podNamed(i))
	}
	for i := there; i < 10000; i++ {
		g.admit("plugin", podNamed(i))
	}
	for i := range there {
		if _, ok := g.waiting[podNamed(i).UID]; !ok {
			t.Fatalf("pod %d is there and was let go", i)
		}
	}
	if n := len(g.waiting); n > 3*there {
		t.Errorf("%d pods are kept, of which %d are there", n, there)
	}
}

// A gate that cannot be prepared for is tried again, and pods are told meanwhile.
func TestGateIsPreparedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tried := 0
		h := &framework.Handle{
			Log: slog.New(slog.DiscardHandler), Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0),
			Background: func(f func(context.Context)) { go f(t.Context()) },
			Activate:   func(*v1.Pod) {}, Reopened: func(*v1.Pod, string) {},
		}
		broken := errors.New("broken")
		g := newGate(h, "x", func(context.Context) ([]toolscache.DoneChecker, error) {
			if tried++; tried < 3 {
				return nil, broken
			}
			return nil, nil
		})
		for _, want := range []error{errClosed, broken} {
			if err := g.closed(podNamed(1)); !errors.Is(err, want) {
				t.Errorf("it is closed for %v, not for %v", err, want)
			}
			synctest.Wait()
		}
		time.Sleep(3 * patience)
		synctest.Wait()
		if err := g.closed(podNamed(1)); err != nil || tried != 3 {
			t.Errorf("after %d attempts: %v", tried, err)
		}
	})
}
