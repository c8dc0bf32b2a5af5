package queue_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/queue"
)

// tester is a plugin that sorts, gates and binds, and wants to hear of nodes with the label that a
// pod's label "needs" names.
type tester struct{}

func (tester) Name() string { return "tester" }
func (tester) Less(a, b *framework.QueuedPod) bool {
	return a.Priority() > b.Priority() || a.Priority() == b.Priority() && a.Added.Before(b.Added)
}

func (tester) PreEnqueue(pod *v1.Pod) *framework.Status {
	if len(pod.Spec.SchedulingGates) > 0 {
		return framework.NewStatus(framework.Unresolvable, "tester", "gated")
	}
	return nil
}

func (tester) Filter(*framework.CycleState, *framework.PodInfo, *framework.NodeInfo) *framework.Status {
	return nil
}

func (tester) Bind(context.Context, *framework.CycleState, *framework.PodInfo, string) *framework.Status {
	return nil
}

func (tester) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeLabel},
			Hint: framework.OnNode(func(pod *framework.PodInfo, _, new *v1.Node) bool {
				_, ok := new.Labels[pod.Pod().Labels["needs"]]
				return ok
			}),
		},
		{Event: framework.Event{Kind: framework.Pod, Action: framework.UpdatePodGatesGone}},
	}
}

// fixture is a queue with the informer's view of pods.
type fixture struct {
	*queue.Queue
	known map[types.UID]*v1.Pod
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return fixtureWith(t, tester{})
}

func fixtureWith(t *testing.T, plugin framework.Plugin) *fixture {
	t.Helper()
	profile, err := framework.NewProfile("test", framework.Enabled{Plugin: plugin})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{known: make(map[types.UID]*v1.Pod)}
	f.Queue = queue.New(queue.Options{
		Profiles: map[string]*framework.Profile{"test": profile}, Less: tester{}.Less,
		Current: func(pod *v1.Pod) *v1.Pod { return f.known[pod.UID] },
	})
	return f
}

func (f *fixture) add(name string, change ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"needs": "disk"}},
		Spec:       v1.PodSpec{SchedulerName: "test"},
	}
	for _, c := range change {
		c(pod)
	}
	f.known[pod.UID] = pod
	f.Add(pod)
	return pod
}

func priority(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }

// pop returns the next pod's name, "" if none can be popped now.
func (f *fixture) pop() (string, *framework.QueuedPod) {
	active, _, _ := f.Len()
	_, backoff, _ := f.Len()
	if active+backoff == 0 {
		return "", nil
	}
	var pod *framework.QueuedPod
	done := make(chan struct{})
	go func() {
		pod = f.Pop()
		close(done)
	}()
	<-done
	return pod.Pod().Name, pod
}

// reject returns the next pod as one that the tester rejected.
func (f *fixture) reject(t *testing.T, name string) {
	t.Helper()
	got, pod := f.pop()
	if got != name {
		t.Fatalf("popped %q, not %q", got, name)
	}
	pod.Rejectors = sets.New("tester")
	if f.Return(pod, nil) == nil {
		t.Fatalf("%s was not put back", name)
	}
}

func (f *fixture) expect(t *testing.T, active, backoff, parked int) {
	t.Helper()
	if a, b, p := f.Len(); a != active || b != backoff || p != parked {
		t.Errorf("%d active, %d in back-off, %d parked; not %d, %d, %d", a, b, p, active, backoff, parked)
	}
}

func nodeWith(label string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{label: ""}}}
}

var nodeAdd = framework.Event{Kind: framework.Node, Action: framework.Add}

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		f.add("first")
		time.Sleep(time.Millisecond)
		f.add("second")
		f.add("urgent", priority(5))
		var order []string
		for range 3 {
			name, _ := f.pop()
			order = append(order, name)
		}
		if want := []string{"urgent", "first", "second"}; !slices.Equal(order, want) {
			t.Errorf("order is %v, not %v", order, want)
		}
	})
}

func TestRejectedPodWaitsForAnEventThatHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		f.add("p")
		f.reject(t, "p")
		f.expect(t, 0, 0, 1)
		f.Move(nodeAdd, nil, nodeWith("other"), nil)
		f.expect(t, 0, 0, 1)
		f.Move(framework.Event{Kind: framework.AssignedPod, Action: framework.Delete}, f.known["p"], nil, nil)
		f.expect(t, 0, 0, 1)
		f.Move(nodeAdd, nil, nodeWith("disk"), func(*v1.Pod) bool { return false })
		f.expect(t, 0, 0, 1)
		f.Move(nodeAdd, nil, nodeWith("disk"), nil)
		f.expect(t, 0, 1, 0)
		// Nothing else is active, so waiting would help no other pod.
		if name, _ := f.pop(); name != "p" {
			t.Errorf("popped %q", name)
		}
	})
}

func TestEventWhileInFlightIsNotLost(t *testing.T) {
	for _, test := range []struct {
		name   string
		label  string
		parked int
	}{{"helps", "disk", 0}, {"does not help", "other", 1}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				defer f.Close()
				f.Move(nodeAdd, nil, nodeWith("disk"), nil) // before it was popped: does not count
				f.add("p")
				_, pod := f.pop()
				f.Move(nodeAdd, nil, nodeWith(test.label), nil)
				pod.Rejectors = sets.New("tester")
				f.Return(pod, nil)
				f.expect(t, 0, 1-test.parked, test.parked)
			})
		})
	}
}

func TestBackoffGrowsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		f.add("p")
		for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
			f.reject(t, "p")
			began := time.Now()
			f.Move(nodeAdd, nil, nodeWith("disk"), nil)
			f.expect(t, 0, 1, 0)
			for {
				if active, _, _ := f.Len(); active == 1 {
					break
				}
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			// Up to the end of the second in which it is over.
			if took := time.Since(began); took < want*time.Second || took > (want+1)*time.Second+100*time.Millisecond {
				t.Errorf("back-off took %v, not %d s", took, want)
			}
		}
	})
}

func TestFailedPodKeepsItsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		f.add("p")
		_, pod := f.pop()
		f.Done(pod.Key())
		f.Return(pod, nil) // no rejectors: an unexpected error
		f.expect(t, 0, 1, 0)
		popped := make(chan struct{})
		go func() {
			f.Pop()
			close(popped)
		}()
		synctest.Wait()
		select {
		case <-popped:
			t.Error("popped before its back-off ended")
		default:
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		<-popped
	})
}

func TestParkedPodIsTriedAgainInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		f.add("p")
		f.reject(t, "p")
		time.Sleep(queue.MaxParked - time.Second)
		synctest.Wait()
		f.expect(t, 0, 0, 1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		f.expect(t, 1, 0, 0)
	})
}

func TestGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		old := f.add("p", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} })
		f.expect(t, 0, 0, 1)
		f.Move(nodeAdd, nil, nodeWith("disk"), nil)
		f.expect(t, 0, 0, 1)
		pod := old.DeepCopy()
		pod.Spec.SchedulingGates = nil
		f.known["p"] = pod
		f.Update(old, pod)
		f.expect(t, 1, 0, 0)
	})
}

// counting counts how often it is asked about a gated pod.
type counting struct {
	tester
	asked *int
}

func (c counting) PreEnqueue(pod *v1.Pod) *framework.Status {
	*c.asked++
	return c.tester.PreEnqueue(pod)
}

func TestGatedPodIsLookedAtByOneTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		f := fixtureWith(t, counting{asked: &asked})
		defer f.Close()
		f.add("p", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} })
		const rounds = 12
		time.Sleep(rounds*queue.MaxParked + time.Second)
		synctest.Wait()
		if asked != 1+rounds {
			t.Errorf("the plugin was asked %d times in %d times MaxParked, want %d", asked, rounds, 1+rounds)
		}
		f.expect(t, 0, 0, 1)
	})
}

func TestPodThatIsGoneDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, change := range map[string]func(*fixture, *v1.Pod){
			"deleted": func(f *fixture, p *v1.Pod) { delete(f.known, p.UID) },
			"bound": func(f *fixture, p *v1.Pod) {
				p = p.DeepCopy()
				p.Spec.NodeName = "n"
				f.known[p.UID] = p
			},
		} {
			f := newFixture(t)
			f.add("p")
			_, pod := f.pop()
			change(f, pod.Pod())
			node := "n"
			if f.Return(pod, &node) != nil {
				t.Errorf("%s: it was put back", name)
			}
			if len(f.Nominations()) != 0 {
				t.Errorf("%s: it was nominated", name)
			}
			f.expect(t, 0, 0, 0)
			f.Close()
		}
	})
}

func TestReturnTakesTheNewestVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		old := f.add("p")
		_, pod := f.pop()
		newer := old.DeepCopy()
		newer.Labels["needs"] = "gpu"
		f.known["p"] = newer
		f.Update(old, newer)
		pod.Rejectors = sets.New("tester")
		if got := f.Return(pod, nil); got.Pod() != newer {
			t.Error("it is the old one")
		}
		f.Move(nodeAdd, nil, nodeWith("gpu"), nil)
		f.expect(t, 0, 1, 0)
	})
}

func TestActivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		parked := f.add("parked")
		f.reject(t, "parked")
		f.Activate(parked)
		f.expect(t, 1, 0, 0)
		_, pod := f.pop()
		f.Activate(parked) // in flight: it is tried again when it returns
		pod.Rejectors = sets.New("tester")
		f.Return(pod, nil)
		f.expect(t, 0, 1, 0)
		f.Activate(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "unknown"}})
		f.expect(t, 0, 1, 0)
	})
}

func TestFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		parked := f.add("parked")
		f.reject(t, "parked")
		f.Failed(parked)
		f.expect(t, 0, 1, 0)
		for range 2 {
			failed := time.Now()
			_, pod := f.pop()
			if waited := time.Since(failed); waited < time.Second {
				t.Errorf("tried again after %v, want its back-off", waited)
			}
			f.Failed(parked) // in flight: it has its back-off when it returns
			pod.Rejectors = sets.New("tester")
			f.Return(pod, nil)
			f.expect(t, 0, 1, 0)
		}
	})
}

// A pod whose binding failed and that was updated meanwhile is in the queue already. What is known
// of its failures counts.
func TestReturnOfAPodThatWasUpdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		old := f.add("p")
		_, pod := f.pop()
		f.Done(old.UID)
		newer := old.DeepCopy()
		newer.Annotations = map[string]string{"some": "thing"}
		f.known[old.UID] = newer
		f.Update(old, newer)
		f.expect(t, 1, 0, 0)
		got := f.Return(pod, nil)
		if got == nil || got.Pod() != newer {
			t.Fatalf("the failure cannot be told: %v", got)
		}
		f.expect(t, 0, 1, 0)
	})
}

func TestGateThatOpensWithoutAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		gated := f.add("gated", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} })
		waits := f.add("waits")
		f.reject(t, "waits")
		f.expect(t, 0, 0, 2)
		f.Reopened(gated, "tester") // it did not open
		f.Reopened(gated, "other")
		f.Reopened(waits, "tester") // no event found it gated
		f.Reopened(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "unknown"}}, "tester")
		f.expect(t, 0, 0, 2)
		gated.Spec.SchedulingGates = nil
		f.Reopened(gated, "tester")
		f.expect(t, 1, 0, 1)
	})
}

func TestNominations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.Close()
		by := func() map[string]int {
			n := make(map[string]int)
			for node, pods := range f.Nominations() {
				n[node] = len(pods)
			}
			return n
		}
		expect := func(want map[string]int) {
			t.Helper()
			if got := by(); !maps.Equal(got, want) {
				t.Errorf("nominated are %v, not %v", got, want)
			}
		}
		old := f.add("p")
		f.add("q", func(p *v1.Pod) { p.Status.NominatedNodeName = "b" })
		expect(map[string]int{"b": 1})
		node := "a"
		f.Nominate(framework.NewPodInfo(old), &node)
		before := f.Nominations()
		expect(map[string]int{"a": 1, "b": 1})
		// An update from before the API server knew.
		pod := old.DeepCopy()
		f.known["p"] = pod
		f.Update(old, pod)
		expect(map[string]int{"a": 1, "b": 1})
		// It knows, and then takes it back.
		named := pod.DeepCopy()
		named.Status.NominatedNodeName = "a"
		f.known["p"] = named
		f.Update(pod, named)
		expect(map[string]int{"a": 1, "b": 1})
		f.known["p"] = pod
		f.Update(named, pod)
		expect(map[string]int{"b": 1})
		f.Delete(f.known["q"])
		expect(map[string]int{})
		if len(before["a"]) != 1 || len(before["b"]) != 1 {
			t.Error("what a cycle reads was changed")
		}
	})
}
