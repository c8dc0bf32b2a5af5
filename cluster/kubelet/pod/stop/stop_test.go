package stop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/decide"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/internal/podtest"
)

func TestGrace(t *testing.T) {
	p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
	c := &p.Spec.Containers[0]
	c.LivenessProbe = &v1.Probe{TerminationGracePeriodSeconds: ptr.To(int64(3))}
	want := func(reason decide.StopReason, d time.Duration) {
		t.Helper()
		if got := graceOf(p, c, reason); got != d {
			t.Errorf("grace %v, want %v", got, d)
		}
	}
	want("", leastGrace)
	p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(30))
	want("", 30*time.Second)
	want(decide.StopForStartup, 30*time.Second)
	want(decide.StopForLiveness, 3*time.Second)
	p.DeletionGracePeriodSeconds = ptr.To(int64(7))
	want(decide.StopForLiveness, 7*time.Second)
	p.DeletionGracePeriodSeconds = ptr.To(int64(0))
	want("", time.Second)
}

func TestSidecarsEndAfterTheOthersAndInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := podtest.Pod(v1.RestartPolicyAlways, "s* i t*", "a b")
		var alive []*kubecontainer.Status
		for _, name := range []string{"s", "t", "a"} { // b has ended before
			alive = append(alive, &kubecontainer.Status{Name: name})
		}
		o := newOrder(p, alive)
		ended := make(chan string, 3)
		for _, s := range alive {
			go func() {
				o.wait(context.Background(), s.Name)
				if s.Name == "a" {
					time.Sleep(time.Second)
				}
				ended <- s.Name
				o.ended(s.Name)
			}()
		}
		for _, want := range []string{"a", "t", "s"} {
			if got := <-ended; got != want {
				t.Errorf("%s ended, want %s", got, want)
			}
		}
	})
}
