package probe

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/probe"
)

// fakeAsker answers each kind from a script; when it is over the last answer stays.
type fakeAsker struct {
	mu      sync.Mutex
	answers map[Kind][]probe.Result
	asked   map[Kind]int
	err     error
}

func (f *fakeAsker) ask(_ context.Context, kind Kind, _ *v1.Probe, _ Target) (probe.Result, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[kind]++
	if f.err != nil {
		return probe.Unknown, "", f.err
	}
	a := f.answers[kind]
	r := a[0]
	if len(a) > 1 {
		f.answers[kind] = a[1:]
	}
	return r, "the output", nil
}

func (f *fakeAsker) count(kind Kind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[kind]
}

func newManager(answers map[Kind][]probe.Result) (*Manager, *fakeAsker, *record.FakeRecorder) {
	f := &fakeAsker{answers: answers, asked: map[Kind]int{}}
	r := record.NewFakeRecorder(100)
	m := New(nil, r, func(types.UID) {})
	m.ask = f.ask
	return m, f, r
}

func every(period, success, failure int32) *v1.Probe {
	return &v1.Probe{PeriodSeconds: period, SuccessThreshold: success, FailureThreshold: failure, TimeoutSeconds: 1}
}

func podTarget(c v1.Container) Target {
	c.Name = "c"
	p := &v1.Pod{}
	p.UID, p.Name, p.Namespace = "u", "p", "ns"
	p.Spec.Containers = []v1.Container{c}
	return Target{Pod: p, Container: &p.Spec.Containers[0], ID: "id", StartedAt: time.Now()}
}

func TestReadinessFollowsItsThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newManager(map[Kind][]probe.Result{Readiness: {
			probe.Failure, probe.Success, probe.Success, probe.Failure, probe.Failure, probe.Failure, probe.Success,
		}})
		defer m.Close()
		m.Watch(podTarget(v1.Container{ReadinessProbe: every(10, 2, 3)}))
		for i, want := range []Result{Unknown, Unknown, Success, Success, Success, Failure, Failure, Success} {
			synctest.Wait()
			if got := m.Get("id", Readiness); got != want {
				t.Errorf("after %d s: %v, want %v", i*10, got, want)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

func TestStartupHoldsTheOthersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f, _ := newManager(map[Kind][]probe.Result{
			Startup: {probe.Failure, probe.Failure, probe.Success}, Liveness: {probe.Failure}, Readiness: {probe.Success},
		})
		defer m.Close()
		m.Watch(podTarget(v1.Container{StartupProbe: every(1, 1, 10), LivenessProbe: every(1, 1, 2), ReadinessProbe: every(1, 1, 1)}))
		time.Sleep(1500 * time.Millisecond)
		if f.count(Liveness)+f.count(Readiness) != 0 {
			t.Error("liveness or readiness was asked before startup succeeded")
		}
		time.Sleep(time.Second)
		if m.Get("id", Startup) != Success || m.Get("id", Readiness) != Success {
			t.Error("startup success did not let readiness begin")
		}
		time.Sleep(time.Second)
		if m.Get("id", Liveness) != Failure {
			t.Error("two failures are not yet a failed liveness")
		}
		time.Sleep(time.Minute)
		if n := f.count(Liveness); n != 2 {
			t.Errorf("liveness asked %d times: it must stop when it has failed", n)
		}
		if n := f.count(Startup); n != 3 {
			t.Errorf("startup asked %d times: it must stop when it has succeeded", n)
		}
	})
}

// Regression: when the clock was set back, a kubelet that started again asked a container only when
// the clock had caught up with the container's start.
func TestInitialDelay(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"started now": 0, "the clock was set back since": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, f, _ := newManager(map[Kind][]probe.Result{Liveness: {probe.Success}})
				defer m.Close()
				p := every(1, 1, 1)
				p.InitialDelaySeconds = 5
				target := podTarget(v1.Container{LivenessProbe: p})
				target.StartedAt = target.StartedAt.Add(ahead)
				m.Watch(target)
				time.Sleep(4900 * time.Millisecond)
				if f.count(Liveness) != 0 {
					t.Error("asked before the initial delay was over")
				}
				time.Sleep(200 * time.Millisecond)
				if f.count(Liveness) != 1 {
					t.Error("not asked when the initial delay was over")
				}
			})
		})
	}
}

func TestEventsOfProbes(t *testing.T) {
	for name, tc := range map[string]struct {
		result probe.Result
		err    error
		want   string
	}{
		"failure": {result: probe.Failure, want: "Warning Unhealthy Readiness probe failed: the output"},
		"warning": {result: probe.Warning, want: "Warning ProbeWarning Readiness probe warning: the output"},
		"error": {
			err:  errors.New("no such port"),
			want: "Warning Unhealthy Readiness probe errored and resulted in unknown state: no such port",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, f, r := newManager(map[Kind][]probe.Result{Readiness: {tc.result}})
				defer m.Close()
				f.err = tc.err
				m.Watch(podTarget(v1.Container{ReadinessProbe: every(10, 1, 1)}))
				synctest.Wait()
				if got := <-r.Events; !strings.HasPrefix(got, tc.want) {
					t.Errorf("event %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestKeepAndQuietEndProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f, _ := newManager(map[Kind][]probe.Result{Liveness: {probe.Success}, Readiness: {probe.Success}})
		m.Watch(podTarget(v1.Container{LivenessProbe: every(1, 1, 1), ReadinessProbe: every(1, 1, 1)}))
		time.Sleep(1500 * time.Millisecond)
		m.Quiet("u")
		before, ready := f.count(Liveness), f.count(Readiness)
		time.Sleep(2 * time.Second)
		if f.count(Liveness) != before || f.count(Readiness) == ready {
			t.Error("a pod that stops is still asked whether it lives, or no longer whether it is ready")
		}
		m.Keep("u")
		synctest.Wait()
		ready = f.count(Readiness)
		time.Sleep(5 * time.Second)
		if f.count(Readiness) != ready || m.Get("id", Readiness) != Unknown {
			t.Error("probes of a forgotten container go on")
		}
	})
}

func TestSeededResultsStayUntilAProbeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newManager(map[Kind][]probe.Result{Startup: {probe.Failure}, Readiness: {probe.Failure}})
		defer m.Close()
		time.Sleep(time.Second)
		target := podTarget(v1.Container{StartupProbe: every(10, 1, 100), ReadinessProbe: every(10, 1, 1)})
		target.StartedAt = time.Now().Add(-time.Hour)
		m.Watch(target)
		m.Seed("id", Startup, Success)
		m.Seed("id", Readiness, Success)
		if m.Get("id", Readiness) != Success {
			t.Error("a container that was ready is not after a restart of the kubelet")
		}
		time.Sleep(11 * time.Second)
		if m.Get("id", Readiness) != Failure {
			t.Error("a probe's answer does not replace the seeded one")
		}
	})
}
