package garbagecollector

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/metatest"
	"github.com/coracle-project/coracle/cluster/controllers/kinds"
)

// counter counts the objects that it is told of.
type counter struct{ exist atomic.Int32 }

func (c *counter) Exists(kinds.Resource, metav1.Object) { c.exist.Add(1) }
func (*counter) Gone(types.UID)                         {}

// Regression: the collector listened before it had its observer. Where informers were at work, as
// on a node that takes over the lead, the observer was not told of the first objects.
func TestObserverIsToldOfWhatInformersAlreadyHave(t *testing.T) {
	const some = 100
	var pods []runtime.Object
	for i := range some {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint("uid-", i)),
		}})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		kube := fake.NewClientset(pods...)
		set := &client.Set{Kube: kube, Informers: client.NewInformers(kube)}
		defer set.Informers.Shutdown()
		set.Informers.Core().V1().Pods().Informer()
		set.Informers.Start(ctx.Done())
		set.Informers.WaitForCacheSync(ctx.Done())
		var observer counter
		c := newCollector(set, metatest.Of(set).Metadata, &observer)
		defer func() { // it ends what New has started
			cancel()
			c.frame.Run(ctx)
		}()
		synctest.Wait()
		if n := observer.exist.Load(); n != some {
			t.Errorf("the observer was told of %d objects, not %d", n, some)
		}
	})
}
