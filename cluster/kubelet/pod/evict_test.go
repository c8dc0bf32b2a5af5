package pod

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/internal/podtest"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/stop"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

func TestAnEvictedPodEndsAndStaysEnded(t *testing.T) {
	for name, disruption := range map[string]bool{"for its own sake": false, "for the node's": true} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
				b.runtime.Calls()
				e := status.Eviction{Reason: "Evicted", Message: "too much. ", Disruption: disruption}
				if !b.runner.Evict(p.UID, e) || b.runner.Evict(p.UID, e) {
					t.Error("it is not evicted once")
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				b.wantCalls("StopContainer", "StopPodSandbox")
				got, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if s := got.Status; s.Phase != v1.PodFailed || s.Reason != "Evicted" || s.Message != "too much. " {
					t.Errorf("%s %s %s", s.Phase, s.Reason, s.Message)
				}
				_, c := podutil.GetPodCondition(&got.Status, v1.DisruptionTarget)
				if (c != nil) != disruption || c != nil && (c.Status != v1.ConditionTrue || c.Reason != "TerminationByKubelet" ||
					c.Message != "too much. ") {
					t.Errorf("condition %+v", c)
				}
			})
		})
	}
}

func TestNothingToEvict(t *testing.T) {
	onBench(t, func(b *bench) {
		if b.runner.Evict("nobody", status.Eviction{}) {
			t.Error("an unknown pod was evicted")
		}
		p := b.run(podtest.Pod(v1.RestartPolicyNever, "", "a"))
		b.exit(p, "a", 0)
		ended, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.runner.Apply(ended)
		if b.runner.Evict(p.UID, status.Eviction{}) {
			t.Error("a pod that has ended was evicted")
		}
	})
}

func TestAnEvictionShortensTheGraceOfAPodThatEnds(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 25}}}
		p = b.run(p)
		b.runtime.Calls()
		b.delete()
		b.wantCalls()
		b.runner.Evict(p.UID, status.Eviction{Reason: "Evicted"})
		time.Sleep(stop.EvictionGrace)
		synctest.Wait()
		b.wantCalls("StopContainer", "StopPodSandbox")
	})
}

// Regression: the stop of one container, such as for a failed probe, held the end of its pod up for
// the grace that it had begun with.
func TestTheEndOfAPodShortensTheStopOfOneContainer(t *testing.T) {
	for name, end := range map[string]struct {
		by     func(b *bench, p *v1.Pod)
		within time.Duration
	}{
		"eviction": {func(b *bench, p *v1.Pod) { b.runner.Evict(p.UID, status.Eviction{Reason: "Evicted"}) }, stop.EvictionGrace},
		"deletion": {func(b *bench, _ *v1.Pod) { b.delete() }, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				p := sized("100m", "64Mi")
				p.Spec.TerminationGracePeriodSeconds = new(int64(3600))
				p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
					{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer},
				}
				p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1800}}}
				p = b.run(p)
				b.resize("100m", "128Mi") // one container is to start again
				b.runtime.Calls()
				end.by(b, p)
				time.Sleep(end.within - time.Millisecond)
				synctest.Wait()
				b.wantCalls()
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				b.wantCalls("StopContainer", "StopPodSandbox")
			})
		})
	}
}
