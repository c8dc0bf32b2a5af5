package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/scheduler"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// cluster is a scheduler that runs on a fake API server, in a bubble of synctest.
type cluster struct {
	t      *testing.T
	client *fake.Clientset
	shared informers.SharedInformerFactory
	events chan string
	s      *scheduler.Scheduler
	stop   func()

	mu sync.Mutex
	// refuse has Bind fail while it returns an error.
	refuse func(*v1.Binding) error
}

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// They log, and sleep if two errors come at the same time: for decades when the second one
	// comes in a bubble of synctest, whose time starts in 2000.
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

func start(t *testing.T, opts scheduler.Options, objects ...runtime.Object) *cluster {
	t.Helper()
	return startOn(t, func(kube kubernetes.Interface) kubernetes.Interface { return kube }, opts, objects...)
}

// startOn starts a cluster whose scheduler makes its calls through what through returns.
func startOn(t *testing.T, through func(kubernetes.Interface) kubernetes.Interface, opts scheduler.Options,
	objects ...runtime.Object,
) *cluster {
	t.Helper()
	c := &cluster{t: t, client: fake.NewClientset(objects...), events: make(chan string, 1000)}
	c.client.PrependReactor("create", "pods", c.bind)
	shared := informers.NewSharedInformerFactory(c.client, 0)
	c.shared = shared
	opts.Recorder = &events.FakeRecorder{Events: c.events}
	s, err := scheduler.New(&client.Set{Kube: through(c.client), Informers: shared}, opts)
	if err != nil {
		t.Fatal(err)
	}
	c.s = s
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	shared.Start(ctx.Done())
	c.stop = func() {
		cancel()
		running.Wait()
		shared.Shutdown()
	}
	synctest.Wait()
	return c
}

func (c *cluster) bind(a clienttesting.Action) (bool, runtime.Object, error) {
	if a.GetSubresource() != "binding" {
		return false, nil, nil
	}
	b := a.(clienttesting.CreateAction).GetObject().(*v1.Binding)
	c.mu.Lock()
	refuse := c.refuse
	c.mu.Unlock()
	if refuse != nil {
		if err := refuse(b); err != nil {
			return true, nil, err
		}
	}
	pods := v1.SchemeGroupVersion.WithResource("pods")
	obj, err := c.client.Tracker().Get(pods, b.Namespace, b.Name)
	if err != nil {
		return true, nil, err
	}
	pod := obj.(*v1.Pod).DeepCopy()
	pod.Spec.NodeName = b.Target.Name
	return true, b, c.client.Tracker().Update(pods, pod, b.Namespace)
}

func (c *cluster) create(pods ...*v1.Pod) {
	c.t.Helper()
	for _, p := range pods {
		if _, err := c.client.CoreV1().Pods(p.Namespace).Create(c.t.Context(), p, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		synctest.Wait()
	}
}

func (c *cluster) get(name string) *v1.Pod {
	c.t.Helper()
	pod, err := c.client.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return pod
}

func (c *cluster) on(name, node string) {
	c.t.Helper()
	if got := c.get(name).Spec.NodeName; got != node {
		c.t.Errorf("pod %s is on node %q, not %q", name, got, node)
	}
}

// event returns the next event.
func (c *cluster) event() string {
	c.t.Helper()
	select {
	case e := <-c.events:
		return e
	default:
		c.t.Fatal("there is no event")
		return ""
	}
}

func node(name, cpu string) *v1.Node {
	allocatable := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110"),
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{v1.LabelHostname: name}},
		Status:     v1.NodeStatus{Allocatable: allocatable, Capacity: allocatable},
	}
}

func pod(name, cpu string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid"), ResourceVersion: "1"},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			Containers: []v1.Container{{
				Name:      "c",
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
			}},
		},
	}
}

func withPriority(p *v1.Pod, priority int32) *v1.Pod {
	p.Spec.Priority = &priority
	return p
}

func onNode(p *v1.Pod, node string) *v1.Pod {
	p.Spec.NodeName = node
	return p
}

func condition(p *v1.Pod) v1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled {
			return c
		}
	}
	return v1.PodCondition{}
}

func TestSchedulesOnTheFreestNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"), node("b", "4"))
		defer c.stop()
		c.create(pod("p", "1"))
		c.on("p", "b")
		if got, want := c.event(), "Normal Scheduled Successfully assigned default/p to b"; got != want {
			t.Errorf("event is %q, not %q", got, want)
		}
	})
}

// The search covers all nodes of a small cluster, so where it starts does not spread equals.
func TestEqualNodesOfASmallClusterAreAllUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes []runtime.Object
		for i := range 10 {
			nodes = append(nodes, node(fmt.Sprint("n", i), "2"))
		}
		c := start(t, scheduler.Options{}, nodes...)
		defer c.stop()
		used := map[string]int{}
		for range 60 {
			c.create(pod("p", "1"))
			used[c.get("p").Spec.NodeName]++
			if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if used[""] > 0 || len(used) < 5 {
			t.Errorf("of 10 equal nodes, pods one at a time got %v", used)
		}
	})
}

func TestPodThatFitsNowhereSaysWhyAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tainted := node("c", "8")
		tainted.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}
		cordoned := node("d", "8")
		cordoned.Spec.Unschedulable = true
		c := start(t, scheduler.Options{}, node("a", "1"), node("b", "1"), tainted, cordoned)
		defer c.stop()
		c.create(pod("p", "2"))

		want := "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 2 Insufficient cpu. " +
			"no new claims to deallocate, preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
		if got := c.event(); got != "Warning FailedScheduling "+want {
			t.Errorf("event is %q", got)
		}
		if got := condition(c.get("p")); got.Status != v1.ConditionFalse || got.Reason != v1.PodReasonUnschedulable || got.Message != want {
			t.Errorf("condition is %+v", got)
		}
	})
}

func TestOnlyEventsThatMayHelpHaveAPodTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "1"))
		defer c.stop()
		c.create(pod("p", "2"))
		c.event()
		ctx := t.Context()
		if _, err := c.client.CoreV1().Nodes().Create(ctx, node("small", "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(c.events) != 0 {
			t.Errorf("a node that is too small had the pod tried again: %s", c.event())
		}
		if _, err := c.client.CoreV1().Nodes().Create(ctx, node("large", "4"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.on("p", "large")
	})
}

func TestCordonedNodeIsInWhatWaitingPodsSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cordoned := node("a", "1")
		c := start(t, scheduler.Options{}, cordoned)
		defer c.stop()
		c.create(pod("p", "2"))
		c.event()
		// The node's controller follows with the taint.
		cordoned = cordoned.DeepCopy()
		cordoned.Spec.Unschedulable = true
		cordoned.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}}
		if _, err := c.client.CoreV1().Nodes().Update(t.Context(), cordoned, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second) // its back-off
		synctest.Wait()
		if got := condition(c.get("p")).Message; !strings.HasPrefix(got, "0/1 nodes are available: 1 node(s) were unschedulable.") {
			t.Errorf("message is %q", got)
		}
	})
}

func TestLastFailureIsTheOneThatIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := node("a", "1")
		c := start(t, scheduler.Options{}, plain)
		defer c.stop()
		c.create(pod("p", "2"))
		first := condition(c.get("p")).Message
		// The next one is on its way for long, and meanwhile all is again as it was.
		hold := make(chan struct{})
		c.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-hold
			return false, nil, nil
		})
		tainted := plain.DeepCopy()
		tainted.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}
		for _, n := range []*v1.Node{tainted, plain} {
			// Not by the client: it makes one call at a time.
			if err := c.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(15 * time.Second) // its back-off
			synctest.Wait()
		}
		close(hold)
		synctest.Wait()
		if got := condition(c.get("p")).Message; got != first {
			t.Errorf("message is %q, not %q", got, first)
		}
	})
}

func TestNoNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{})
		defer c.stop()
		c.create(pod("p", "1"))
		if got, want := c.event(), "Warning FailedScheduling no nodes available to schedule pods"; got != want {
			t.Errorf("event is %q, not %q", got, want)
		}
		if got := condition(c.get("p")); got.Reason != v1.PodReasonUnschedulable {
			t.Errorf("condition is %+v", got)
		}
		if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node("a", "2"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.on("p", "a")
	})
}

func TestGatedPodWaitsForItsGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"))
		defer c.stop()
		p := pod("p", "1")
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/wait"}}
		c.create(p)
		c.on("p", "")
		p = c.get("p")
		p.Spec.SchedulingGates, p.ResourceVersion = nil, "2"
		if _, err := c.client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.on("p", "a")
	})
}

func TestFailedBindingGivesTheRoomBackAndIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"))
		defer c.stop()
		c.mu.Lock()
		c.refuse = func(b *v1.Binding) error {
			if b.Name == "p" {
				return errors.New("no")
			}
			return nil
		}
		c.mu.Unlock()
		c.create(pod("p", "2"))
		if got := c.event(); !strings.HasPrefix(got, "Warning FailedScheduling running Bind plugin \"DefaultBinder\": no") {
			t.Errorf("event is %q", got)
		}
		if got := condition(c.get("p")); got.Reason != v1.PodReasonSchedulerError {
			t.Errorf("condition is %+v", got)
		}
		c.create(pod("q", "2"))
		c.on("q", "a") // what p was assumed to take is free
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		c.refuse = nil
		c.mu.Unlock()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		c.on("p", "a")
	})
}

func TestEndedPodsTakeNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"), onNode(pod("old", "2"), "a"))
		defer c.stop()
		c.create(pod("p", "2"))
		c.on("p", "")
		old := c.get("old")
		old.Status.Phase = v1.PodSucceeded
		if _, err := c.client.CoreV1().Pods("default").UpdateStatus(t.Context(), old, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.on("p", "a")
	})
}

func TestPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"), node("b", "2"),
			onNode(withPriority(pod("low", "2"), 1), "a"), onNode(withPriority(pod("middle", "2"), 5), "b"))
		defer c.stop()
		c.create(withPriority(pod("high", "2"), 10))
		if _, err := c.client.CoreV1().Pods("default").Get(t.Context(), "low", metav1.GetOptions{}); err == nil {
			t.Error("the pod of lowest priority was not removed")
		}
		c.get("middle")
		c.on("high", "a")
		if got := c.get("high").Status.NominatedNodeName; got != "a" {
			t.Errorf("nominated to %q", got)
		}
		var seen []string
		for len(c.events) > 0 {
			seen = append(seen, c.event())
		}
		want := "Normal Preempted Preempted by pod high-uid on node a"
		if !strings.Contains(strings.Join(seen, "\n"), want) {
			t.Errorf("no event %q in %q", want, seen)
		}
		var patched bool
		for _, a := range c.client.Actions() {
			if p, ok := a.(clienttesting.PatchAction); ok && p.GetName() == "low" {
				patched = strings.Contains(string(p.GetPatch()), "default-scheduler: preempting to accommodate a higher priority pod")
			}
		}
		if !patched {
			t.Error("the victim got no DisruptionTarget condition")
		}
	})
}

func TestPodOfEqualPriorityIsNotPreempted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"), onNode(pod("old", "2"), "a"))
		defer c.stop()
		c.create(pod("p", "2"))
		want := "Warning FailedScheduling 0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, " +
			"preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
		if got := c.event(); got != want {
			t.Errorf("event is %q, not %q", got, want)
		}
		c.get("old")
	})
}

func TestHigherPriorityGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Both wait when the scheduler starts, and only one fits.
		c := start(t, scheduler.Options{}, node("a", "2"), pod("low", "2"), withPriority(pod("high", "2"), 10))
		defer c.stop()
		c.on("high", "a")
		c.on("low", "")
	})
}

// permit is a Permit plugin that makes pods wait.
type permit struct{ *framework.Handle }

func (permit) Name() string { return "permit" }
func (permit) Permit(context.Context, *framework.CycleState, *framework.PodInfo, string) (time.Duration, *framework.Status) {
	return time.Minute, framework.NewStatus(framework.Wait, "permit")
}

func TestPermit(t *testing.T) {
	for _, test := range []struct {
		name   string
		decide func(*framework.WaitingPod)
		node   string
		event  string
	}{
		{"allowed", func(w *framework.WaitingPod) { w.Allow("permit") }, "a", "Normal Scheduled Successfully assigned default/p to a"},
		{"rejected", func(w *framework.WaitingPod) {
			w.Reject("permit", "not today")
		}, "", "Warning FailedScheduling 0/1 nodes are available: 1 not today."},
		{
			"timeout", func(*framework.WaitingPod) { time.Sleep(time.Minute) }, "",
			"Warning FailedScheduling 0/1 nodes are available: 1 rejected due to timeout after waiting 1m0s at plugin permit.",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var handle *framework.Handle
				c := start(t, scheduler.Options{Profiles: map[string]func(*framework.Handle) []framework.Enabled{
					"waiting": func(h *framework.Handle) []framework.Enabled {
						handle = h
						return append(defaults(h), framework.Enabled{Plugin: permit{h}})
					},
				}}, node("a", "2"))
				defer c.stop()
				p := pod("p", "1")
				p.Spec.SchedulerName = "waiting"
				c.create(p)
				c.on("p", "")
				waiting := handle.Waiting.Get(p.UID)
				if waiting == nil {
					t.Fatal("the pod does not wait")
				}
				test.decide(waiting)
				synctest.Wait()
				c.on("p", test.node)
				if got := c.event(); got != test.event {
					t.Errorf("event is %q, not %q", got, test.event)
				}
			})
		})
	}
}

func TestPodsOfOtherSchedulersAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"))
		defer c.stop()
		p := pod("p", "1")
		p.Spec.SchedulerName = "someone-else"
		c.create(p)
		c.on("p", "")
	})
}

func TestManyPodsFillTheClusterExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		for i := range 20 {
			objects = append(objects, node(fmt.Sprintf("n%d", i), "2"))
		}
		for i := range 45 {
			objects = append(objects, pod(fmt.Sprintf("p%d", i), "1"))
		}
		c := start(t, scheduler.Options{}, objects...)
		defer c.stop()
		load := make(map[string]int)
		for i := range 45 {
			load[c.get(fmt.Sprintf("p%d", i)).Spec.NodeName]++
		}
		for i := range 20 {
			if got := load[fmt.Sprintf("n%d", i)]; got != 2 {
				t.Errorf("node n%d has %d pods, not 2", i, got)
			}
		}
		if load[""] != 5 {
			t.Errorf("%d pods are left, not 5", load[""])
		}
	})
}

// bomb is a plugin that panics over some pods.
type bomb struct{ at string }

func (bomb) Name() string { return "bomb" }

func (b bomb) Filter(_ *framework.CycleState, pod *framework.PodInfo, _ *framework.NodeInfo) *framework.Status {
	if b.at == "filter" && pod.Pod().Name == "odd" {
		panic("odd pod")
	}
	return nil
}

func (bomb) Prepares(*framework.CycleState, *framework.PodInfo, string) bool { return true }

func (b bomb) PreBind(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ string) *framework.Status {
	if b.at == "bind" && pod.Pod().Name == "odd" {
		panic("odd pod")
	}
	return nil
}

func TestPanicOverOnePodStopsNoOther(t *testing.T) {
	for _, at := range []string{"filter", "bind"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, scheduler.Options{Profiles: map[string]func(*framework.Handle) []framework.Enabled{
					v1.DefaultSchedulerName: func(h *framework.Handle) []framework.Enabled {
						return append(defaults(h), framework.Enabled{Plugin: bomb{at}})
					},
				}}, node("a", "2"))
				defer c.stop()
				c.create(pod("odd", "2"), pod("even", "2"))
				c.on("odd", "")
				c.on("even", "a")
				if got := condition(c.get("odd")); got.Reason != v1.PodReasonSchedulerError || !strings.HasPrefix(got.Message, "panic: odd pod") {
					t.Errorf("condition is %+v", got)
				}
			})
		})
	}
}
