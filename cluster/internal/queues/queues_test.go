package queues_test

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/util/workqueue"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // sets its provider

	"github.com/coracle-project/coracle/cluster/internal/queues"
)

// loop is the goroutine of a queue that updates metrics.
const loop = "updateUnfinishedWorkLoop"

func goroutines(t *testing.T) string {
	t.Helper()
	var text bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&text, 2); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

type counted struct{ workqueue.MetricsProvider }

// A queue with a name has no goroutine that wakes without work, even with component-base linked.
// With another provider it has: the test would notice one.
func TestQueuesDoNotWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "idle"})
		defer q.ShutDown()
		synctest.Wait()
		if strings.Contains(goroutines(t), loop) {
			t.Error("a queue with a name updates metrics")
		}
		other := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "busy", MetricsProvider: counted{queues.Nothing}})
		defer other.ShutDown()
		synctest.Wait()
		if !strings.Contains(goroutines(t), loop) {
			t.Errorf("no goroutine is named %s any more: look at client-go's queues again", loop)
		}
	})
}
