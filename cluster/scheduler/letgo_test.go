package scheduler_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/scheduler"
)

// What is deleted is not kept until the next pod comes: after a burst that would be much, and for
// long.
func TestLetsGoOfWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"))
		defer c.stop()
		c.create(pod("p", "1"), pod("q", "1")) // q's cycle sees p on the node
		p, err := c.shared.Core().V1().Pods().Lister().Pods("default").Get("p")
		if err != nil {
			t.Fatal(err)
		}
		n, err := c.shared.Core().V1().Nodes().Lister().Get("a")
		if err != nil {
			t.Fatal(err)
		}
		keptPod, keptNode := weak.Make(p), weak.Make(n)
		p, n = nil, nil
		kept := func() bool {
			runtime.GC()
			return keptPod.Value() != nil || keptNode.Value() != nil
		}
		for _, err := range []error{
			c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}),
			c.client.CoreV1().Pods("default").Delete(t.Context(), "q", metav1.DeleteOptions{}),
			c.client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if !kept() {
			t.Error("nothing was kept even before: this tests nothing")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if kept() {
			t.Error("a pod or a node that is gone is kept")
		}
	})
}
