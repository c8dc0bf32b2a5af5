package framework_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

func snapshot(names ...string) *framework.Snapshot {
	s := &framework.Snapshot{Position: make(map[string]int), Slots: len(names)}
	generations := new(framework.Generations)
	for i, name := range names {
		n := framework.NewNodeInfo(i, generations)
		n.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		s.Position[name] = i
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

func TestFitErrorMessage(t *testing.T) {
	s := snapshot("a", "b", "c", "d")
	cpu := framework.NewStatus(framework.Unschedulable, "fit", "Insufficient cpu")
	both := framework.NewStatus(framework.Unschedulable, "fit", "Insufficient cpu", "Insufficient memory")
	for _, test := range []struct {
		name string
		make func(f *framework.FitError)
		want string
	}{
		{"nothing known", func(*framework.FitError) {}, "0/4 nodes are available:"},
		{
			"reasons are counted and sorted", func(f *framework.FitError) {
				f.Rejections = framework.NewRejections(s)
				f.Rejections.Set(s.Nodes[0], both)
				f.Rejections.Set(s.Nodes[1], cpu)
				f.Rejections.Set(s.Nodes[2], cpu)
			}, "0/4 nodes are available: 1 Insufficient memory, 3 Insufficient cpu.",
		},
		{
			"nodes not asked", func(f *framework.FitError) {
				f.Rejections = framework.NewRejections(s)
				f.Rejections.Set(s.Nodes[0], cpu)
				f.Rejections.Others = framework.NewStatus(framework.Unresolvable, "", "not helpful")
			}, "0/4 nodes are available: 1 Insufficient cpu, 3 not helpful.",
		},
		{
			"before and after", func(f *framework.FitError) {
				f.Rejections = framework.NewRejections(s)
				f.Rejections.Others = cpu
				f.PreFilter, f.PostFilter = "pod affinity terms conflict", "preemption: no."
			}, "0/4 nodes are available: pod affinity terms conflict. preemption: no.",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &framework.FitError{Nodes: 4}
			test.make(f)
			if got := f.Error(); got != test.want {
				t.Errorf("message is %q, not %q", got, test.want)
			}
		})
	}
}

func TestParallelDoesEachPieceOnce(t *testing.T) {
	for _, workers := range []framework.Parallel{0, 1, 2, 7} {
		for _, n := range []int{0, 1, 9, 10, 1000} {
			done := make([]atomic.Int32, n)
			workers.Do(n, 10, func(from, to int) {
				for i := from; i < to; i++ {
					done[i].Add(1)
				}
			})
			for i := range done {
				if got := done[i].Load(); got != 1 {
					t.Fatalf("%d workers, %d pieces: piece %d was done %d times", workers, n, i, got)
				}
			}
		}
	}
}

func TestParallelPanicsOnTheCallersGoroutine(t *testing.T) {
	defer func() {
		if r, _ := recover().(string); !strings.HasPrefix(r, "at 500") {
			t.Errorf("recovered %q", r)
		}
	}()
	framework.Parallel(4).Do(1000, 1, func(from, to int) {
		if from <= 500 && 500 < to {
			panic("at 500")
		}
	})
}

func TestHostPorts(t *testing.T) {
	port := func(ip string, protocol v1.Protocol, n int32) framework.HostPort {
		return framework.HostPort{IP: ip, Protocol: protocol, Port: n}
	}
	for _, test := range []struct {
		name string
		a, b framework.HostPort
		want bool
	}{
		{"same", port("10.0.0.1", "TCP", 80), port("10.0.0.1", "TCP", 80), true},
		{"other address", port("10.0.0.1", "TCP", 80), port("10.0.0.2", "TCP", 80), false},
		{"all addresses", port("0.0.0.0", "TCP", 80), port("10.0.0.2", "TCP", 80), true},
		{"other protocol", port("0.0.0.0", "TCP", 80), port("0.0.0.0", "UDP", 80), false},
		{"other port", port("0.0.0.0", "TCP", 80), port("0.0.0.0", "TCP", 81), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := framework.NewNodeInfo(0, new(framework.Generations))
			pod := framework.NewPodInfo(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p"}})
			pod.HostPorts = []framework.HostPort{test.a}
			n.Add(pod)
			if test.a.Conflicts(test.b) != test.want || n.PortTaken(test.b) != test.want {
				t.Errorf("conflict is %v, taken %v", test.a.Conflicts(test.b), n.PortTaken(test.b))
			}
			if err := n.Remove(pod); err != nil || n.PortTaken(test.a) {
				t.Errorf("the port is not free: %v", err)
			}
		})
	}
}

type counter struct{ n int }

func (c *counter) Clone() any { return &counter{c.n} }

func TestCycleStateClonesWhatWhatIfsChange(t *testing.T) {
	cloned, shared, unset := framework.NewKey[*counter](), framework.NewKey[*int](), framework.NewKey[string]()
	s := framework.NewCycleState(nil, nil)
	n := 1
	cloned.Write(s, &counter{1})
	shared.Write(s, &n)
	c := s.Clone()
	cloned.Read(c).n = 2
	if cloned.Read(s).n != 1 || shared.Read(c) != &n || unset.Read(c) != "" {
		t.Error("the clone is not what it should be")
	}
}

type named string

func (n named) Name() string                      { return string(n) }
func (named) Less(a, b *framework.QueuedPod) bool { return false }
func (named) Bind(context.Context, *framework.CycleState, *framework.PodInfo, string) *framework.Status {
	return nil
}

type nothing string

func (n nothing) Name() string { return string(n) }

func TestProfilesThatCannotWork(t *testing.T) {
	enable := func(list ...framework.Plugin) (out []framework.Enabled) {
		for _, p := range list {
			out = append(out, framework.Enabled{Plugin: p})
		}
		return out
	}
	for want, plugins := range map[string][]framework.Enabled{
		"enabled twice":       enable(named("a"), nothing("a")),
		"both sort the queue": enable(named("a"), named("b")),
		"no plugin sorts":     enable(nothing("a")),
	} {
		if _, err := framework.NewProfile("p", plugins...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, not of %q", err, want)
		}
	}
}

func TestWaitingPodIsDecidedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := framework.NewWaitingPods()
		pod := framework.NewPodInfo(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID("p")}})
		p := w.Add(pod, "n", map[string]time.Duration{"a": time.Minute, "b": time.Hour})
		p.Allow("a")
		time.Sleep(2 * time.Minute) // a's time is over, but it has agreed
		if !p.Reject("b", "no") || p.Reject("b", "no again") {
			t.Error("it should be possible to reject it once")
		}
		p.Allow("b")
		if s := w.Wait(t.Context(), p); s.Message() != "no" || s.Plugin() != "b" {
			t.Errorf("it became %v", s)
		}
		if w.Get("p") != nil {
			t.Error("it still waits")
		}
	})
}
