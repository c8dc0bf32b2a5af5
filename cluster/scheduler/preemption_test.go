package scheduler_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/scheduler"
)

// slow is an API whose patches of the pods named by hold wait until it is closed.
type slow struct {
	kubernetes.Interface
	hold map[string]chan struct{}
}

func (s slow) CoreV1() corev1client.CoreV1Interface { return slowCore{s.Interface.CoreV1(), s.hold} }

type slowCore struct {
	corev1client.CoreV1Interface
	hold map[string]chan struct{}
}

func (c slowCore) Pods(namespace string) corev1client.PodInterface {
	return slowPods{c.CoreV1Interface.Pods(namespace), c.hold}
}

type slowPods struct {
	corev1client.PodInterface
	hold map[string]chan struct{}
}

func (p slowPods) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions,
	sub ...string,
) (*v1.Pod, error) {
	if ch := p.hold[name]; ch != nil {
		<-ch
	}
	return p.PodInterface.Patch(ctx, name, kind, data, opts, sub...)
}

// The victims end by themselves while the scheduler is about to remove the first of them. Their
// deletions find the preemptor kept waiting, and what the scheduler does after that brings no
// event.
func TestPreemptorOfPodsThatGoByThemselvesIsNotParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := withPriority(pod("first", "1"), 2), withPriority(pod("second", "1"), 1)
		hold := make(chan struct{})
		api := slow{hold: map[string]chan struct{}{"first": hold, "second": hold}}
		c := startOn(t, func(kube kubernetes.Interface) kubernetes.Interface { api.Interface = kube; return api },
			scheduler.Options{}, node("a", "2"), onNode(first, "a"), onNode(second, "a"))
		defer c.stop()
		c.create(withPriority(pod("high", "2"), 10))
		for _, victim := range []string{"first", "second"} {
			if err := c.client.CoreV1().Pods("default").Delete(t.Context(), victim, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		c.on("high", "") // it is kept waiting: else this test shows nothing
		close(hold)
		synctest.Wait()
		c.on("high", "a")
	})
}

// A victim that must not be removed: the preemptor is tried again, ever less often.
func TestVictimThatCannotBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"), onNode(withPriority(pod("low", "2"), 1), "a"))
		defer c.stop()
		var refused atomic.Int32
		c.client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			refused.Add(1)
			return true, nil, apierrors.NewForbidden(v1.Resource("pods"), "low", errors.New("a policy says no"))
		})
		c.create(withPriority(pod("high", "2"), 10))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := refused.Load(); n < 2 || n > 12 {
			t.Errorf("tried to remove the victim %d times in a minute, want some times", n)
		}
		c.on("high", "")
	})
}
