package nodelifecycle

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/tainteviction"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
)

// TestMain keeps logs out of the tests', and upstream's error handler too: it sleeps until some
// time after its last error, which another bubble's clock set.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

var own, theirs = oursWith(0), theirsWith(DefaultGrace)

func oursWith(grace time.Duration) apitest.Controllers {
	return apitest.Ours(
		func(set *client.Set) *frame.Controller {
			return must(New(set, set.Kube, nodepatch.New(set.Kube.CoreV1().Nodes()), grace))
		},
		func(set *client.Set) *frame.Controller { return must(NewEviction(set)) },
	).As("node-controller")
}

func theirsWith(grace time.Duration) apitest.Controllers {
	return apitest.Controllers{
		func(set *client.Set) interface{ Run(context.Context) } {
			informers := set.Informers
			informers.Coordination().V1().Leases().Informer()
			informers.Apps().V1().DaemonSets().Informer()
			core := informers.Core().V1()
			core.Pods().Informer()
			core.Nodes().Informer()
			return apitest.Upstream(func(ctx context.Context) {
				must(upstream.NewNodeLifecycleController(ctx, informers.Coordination().V1().Leases(), core.Pods(), core.Nodes(),
					informers.Apps().V1().DaemonSets(), withREST{set.Kube}, 5*time.Second, startupGrace, grace,
					float32(normalRate), float32(partialRate), largeZone, unhealthyShare)).Run(ctx)
			})
		},
		func(set *client.Set) interface{ Run(context.Context) } {
			core := set.Informers.Core().V1()
			core.Pods().Informer()
			core.Nodes().Informer()
			return apitest.Upstream(func(ctx context.Context) {
				time.Sleep(time.Millisecond) // the other makes the index that this one uses
				must(tainteviction.New(ctx, set.Kube, core.Pods(), core.Nodes(), "taint-eviction-controller")).Run(ctx)
			})
		},
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is a cluster whose kubelets the test plays.
type world struct {
	*apitest.Server
	t *testing.T
}

var ctx = context.Background()

// node registers a node that is ready, or has no conditions yet.
func (w world) node(name string, labels map[string]string, ready bool) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if ready {
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now()},
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()},
		}
	}
	must(w.Kube.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}))
	must(w.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
		Spec:       coordinationv1.LeaseSpec{RenewTime: now()},
	}, metav1.CreateOptions{}))
}

func now() *metav1.MicroTime { return &metav1.MicroTime{Time: time.Now()} }

// beat lets d pass in which the Leases of these nodes are renewed.
func (w world) beat(d time.Duration, nodes ...string) {
	for ; d > 0; d -= 10 * time.Second {
		for _, name := range nodes {
			w.renew(name, time.Now())
		}
		w.Pass(10 * time.Second)
	}
}

// renew renews the Lease of a node whose clock says now.
func (w world) renew(node string, now time.Time) {
	leases := w.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease := must(leases.Get(ctx, node, metav1.GetOptions{}))
	lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
	must(leases.Update(ctx, lease, metav1.UpdateOptions{}))
}

// say posts a condition of a node.
func (w world) say(name string, of corev1.NodeConditionType, status corev1.ConditionStatus) {
	must(0, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n := must(w.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}))
		c := condition(n, of)
		if c == nil {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: of})
			c = condition(n, of)
		}
		c.Status, c.Reason, c.Message, c.LastHeartbeatTime = status, "Said", "said so", metav1.Now()
		_, err := w.Kube.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
		return err
	}))
}

// pod puts a pod on a node that tolerates its being away for these seconds (-1: forever, 0: not).
func (w world) pod(name, node string, seconds int64) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: name}}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if seconds != 0 {
			toleration := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
			if seconds > 0 {
				toleration.TolerationSeconds = &seconds
			}
			p.Spec.Tolerations = append(p.Spec.Tolerations, toleration)
		}
	}
	p = must(w.Kube.CoreV1().Pods(apitest.Namespace).Create(ctx, p, metav1.CreateOptions{}))
	w.SetPod(w.t, p, func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
}

// state is what nodes and pods look like, and the events so far.
//
// That a pod's eviction was cancelled is compared for pods that live on nodes that do not evict.
// Of others upstream says it or not, as it happens: it handles a node once or several times for one
// change, and each further time it cancels what it then schedules again.
func (w world) state() string {
	var out, staying []string
	evicting := map[string]bool{}
	for _, n := range must(w.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})).Items {
		line := "node " + n.Name + " labels=" + fmt.Sprint(n.Labels)
		var parts []string
		for _, c := range n.Status.Conditions {
			parts = append(parts, fmt.Sprintf("%s=%s(%s: %s)", c.Type, c.Status, c.Reason, c.Message))
		}
		for _, taint := range n.Spec.Taints {
			parts = append(parts, taint.Key+":"+string(taint.Effect))
			evicting[n.Name] = evicting[n.Name] || taint.Effect == corev1.TaintEffectNoExecute
		}
		slices.Sort(parts)
		out = append(out, line+" "+strings.Join(parts, " "))
	}
	for _, p := range w.Pods(w.t) {
		line := fmt.Sprintf("pod %s deleted=%t", p.Name, p.DeletionTimestamp != nil)
		for _, c := range p.Status.Conditions {
			line += fmt.Sprintf(" %s=%s(%s: %s)", c.Type, c.Status, c.Reason, c.Message)
		}
		out = append(out, line)
		if p.DeletionTimestamp == nil && !evicting[p.Spec.NodeName] {
			staying = append(staying, p.Namespace+"/"+p.Name)
		}
	}
	events := slices.DeleteFunc(w.Events(w.t), func(event string) bool {
		_, pod, cancelled := strings.Cut(event, "Cancelling deletion of Pod ")
		return cancelled && !slices.Contains(staying, pod)
	})
	slices.Sort(events)
	return strings.Join(append(out, slices.Compact(events)...), "\n")
}

var zoneA, zoneB = map[string]string{corev1.LabelTopologyZone: "a"}, map[string]string{corev1.LabelTopologyZone: "b"}

var scenarios = map[string]func(w world, note func(string)){
	"a node falls silent and comes back": func(w world, note func(string)) {
		w.node("a", nil, true)
		w.node("b", nil, true)
		w.pod("quick", "a", 0)
		w.pod("patient", "a", 300)
		w.pod("stoic", "a", -1)
		w.pod("elsewhere", "b", 0)
		w.beat(30*time.Second, "a", "b")
		note("all well")
		w.beat(100*time.Second, "b")
		note("a is silent")
		w.beat(400*time.Second, "b")
		note("a has been silent for long")
		w.say("a", corev1.NodeReady, corev1.ConditionTrue)
		w.beat(30*time.Second, "a", "b")
		note("a is back")
	},
	"a node comes back before its pods are evicted": func(w world, note func(string)) {
		w.node("a", nil, true)
		w.node("b", nil, true)
		w.pod("patient", "a", 300)
		w.beat(150*time.Second, "b")
		note("a is silent")
		w.say("a", corev1.NodeReady, corev1.ConditionTrue)
		w.beat(time.Minute, "a", "b")
		note("a is back")
		w.beat(10*time.Minute, "a", "b")
		note("much later")
	},
	"a kubelet says that its node is not ready": func(w world, note func(string)) {
		w.node("a", nil, true)
		w.node("b", nil, true)
		w.pod("quick", "a", 0)
		w.beat(30*time.Second, "a", "b")
		w.say("a", corev1.NodeReady, corev1.ConditionFalse)
		w.beat(30*time.Second, "a", "b")
		note("not ready")
		w.pod("late", "a", -1)
		w.beat(30*time.Second, "a", "b")
		note("a pod was bound to it")
		w.beat(2*time.Minute, "b")
		note("and silent")
	},
	"pressure and cordon": func(w world, note func(string)) {
		w.node("a", map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", "beta.kubernetes.io/arch": "arm"}, true)
		w.say("a", corev1.NodeMemoryPressure, corev1.ConditionTrue)
		w.say("a", corev1.NodeDiskPressure, corev1.ConditionTrue)
		w.say("a", corev1.NodePIDPressure, corev1.ConditionTrue)
		w.say("a", corev1.NodeNetworkUnavailable, corev1.ConditionTrue)
		w.beat(10*time.Second, "a")
		n := must(w.Kube.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}))
		n.Spec.Unschedulable = true
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule})
		must(w.Kube.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}))
		w.beat(30*time.Second, "a")
		note("everything at once")
		w.say("a", corev1.NodeMemoryPressure, corev1.ConditionFalse)
		w.say("a", corev1.NodeDiskPressure, corev1.ConditionUnknown)
		w.beat(10*time.Second, "a")
		n = must(w.Kube.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}))
		n.Spec.Unschedulable = false
		must(w.Kube.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}))
		w.beat(30*time.Second, "a")
		note("less")
	},
	"no node is ready": func(w world, note func(string)) {
		w.node("a", zoneA, true)
		w.node("b", zoneB, true)
		// The pods tolerate what upstream does to their nodes by chance (see byChance).
		w.pod("stoic", "a", -1)
		w.pod("stoical", "b", -1)
		w.beat(30*time.Second, "a", "b")
		w.beat(20 * time.Minute)
		note("all silent")
		w.say("a", corev1.NodeReady, corev1.ConditionTrue)
		w.beat(40*time.Second, "a")
		note("one is back")
		w.beat(10*time.Minute, "a")
		note("the other is not")
	},
	"most nodes of a small zone are silent": func(w world, note func(string)) {
		for i := range 5 {
			w.node(fmt.Sprint("n", i), zoneA, true)
			w.pod(fmt.Sprint("p", i), fmt.Sprint("n", i), -1)
		}
		w.beat(30*time.Second, "n0", "n1", "n2", "n3", "n4")
		for i := range 4 {
			w.say(fmt.Sprint("n", i), corev1.NodeReady, corev1.ConditionFalse)
		}
		w.beat(10*time.Minute, "n0", "n1", "n2", "n3", "n4")
		for i := range 2 {
			w.say(fmt.Sprint("n", i), corev1.NodeReady, corev1.ConditionTrue)
		}
		w.beat(10*time.Minute, "n0", "n1", "n2", "n3", "n4")
		note("enough are back")
	},
	"a node never speaks, another leaves": func(w world, note func(string)) {
		w.node("mute", nil, false)
		w.node("gone", nil, true)
		w.beat(30*time.Second, "gone")
		note("registered")
		if err := w.Kube.CoreV1().Nodes().Delete(ctx, "gone", metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		w.Pass(5 * time.Minute)
		note("later")
	},
	"a user's taint and a pod's new toleration": func(w world, note func(string)) {
		w.node("a", nil, true)
		w.pod("quick", "a", 0)
		w.pod("any", "a", 0)
		p := must(w.Kube.CoreV1().Pods(apitest.Namespace).Get(ctx, "any", metav1.GetOptions{}))
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		must(w.Kube.CoreV1().Pods(apitest.Namespace).Update(ctx, p, metav1.UpdateOptions{}))
		w.beat(10*time.Second, "a")
		n := must(w.Kube.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}))
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoExecute})
		must(w.Kube.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}))
		w.beat(30*time.Second, "a")
		note("tainted")
	},
}

// byChance are the taints that upstream sets or not in a step: it taints nodes in one goroutine
// and takes the taints back in another when it sees that no node is left, and whichever comes last
// wins. That we set none then is TestNoPodIsEvictedWhenAllNodesFallSilent's.
var byChance = map[string]string{
	"all silent":  " " + corev1.TaintNodeUnreachable + ":NoExecute",
	"one is back": " " + corev1.TaintNodeUnreachable + ":NoExecute",
}

// TestAsUpstream plays the same troubles to upstream's controllers and to ours.
func TestAsUpstream(t *testing.T) {
	for title, scenario := range scenarios {
		t.Run(title, func(t *testing.T) { compare(t, own, theirs, scenario) })
	}
}

func TestGracePeriodAsUpstream(t *testing.T) {
	const grace = 20 * time.Second
	compare(t, oursWith(grace), theirsWith(grace), func(w world, note func(string)) {
		w.node("a", nil, true)
		w.node("b", nil, true)
		w.pod("patient", "a", 30)
		w.beat(30*time.Second, "a", "b")
		note("all well")
		w.beat(40*time.Second, "b")
		note("a is silent, for less than the default")
		w.beat(40*time.Second, "b")
		note("a has been silent for long")
	})
}

// A node whose clock is wrong is alive while it renews its Lease. Regression: when its clock was
// set back, it was found silent again and again until the clock had caught up.
func TestClocksOfNodesThatAreSet(t *testing.T) {
	own.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		for _, name := range []string{"set", "silent", "good"} {
			w.node(name, nil, true)
		}
		w.pod("quick", "set", 0)
		taints := func(name string) []corev1.Taint {
			return must(w.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})).Spec.Taints
		}
		for _, ahead := range []time.Duration{0, time.Hour, 0, -time.Hour, 0, time.Hour} {
			for range 30 {
				w.renew("set", time.Now().Add(ahead))
				w.beat(10*time.Second, "good")
			}
			if len(taints("set")) > 0 || len(taints("silent")) == 0 {
				t.Errorf("with a clock that is %v ahead: %s", ahead, w.state())
			}
		}
		w.beat(2*time.Minute, "good")
		if pods := w.Pods(t); len(taints("set")) == 0 || len(pods) > 0 && pods[0].DeletionTimestamp == nil {
			t.Errorf("silent, after its clock was ahead: %s", w.state())
		}
	})
}

// compare runs a scenario with upstream's controllers and ours.
func compare(t *testing.T, own, theirs apitest.Controllers, scenario func(w world, note func(string))) {
	t.Helper()
	var want []string
	after := func(w world, step string) string {
		state := w.state()
		if taint := byChance[step]; taint != "" {
			state = strings.ReplaceAll(state, taint, "")
		}
		return step + ":\n" + state
	}
	theirs.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		scenario(w, func(step string) { want = append(want, after(w, step)) })
	})
	own.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		scenario(w, func(step string) {
			got := after(w, step)
			if got != want[0] {
				t.Errorf("%s\n\nupstream %s", got, want[0])
			}
			want = want[1:]
		})
	})
}

// Regression: each conflict with another writer of a new node took a pause of at least 100 ms, and
// a thousand nodes that joined took 20 seconds to lose their taints.
func TestConflictsTakeNoTime(t *testing.T) {
	own.Run(t, func(t *testing.T, s *apitest.Server) {
		refused := 0
		s.Refuse(func(verb, resource string) error {
			if verb != "patch" || resource != "nodes" || refused == attempts-1 {
				return nil
			}
			refused++
			return apierrors.NewConflict(corev1.Resource("nodes"), "a", nil)
		})
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		n.Spec.Taints = []corev1.Taint{
			{Key: "mine", Effect: corev1.TaintEffectNoSchedule},
			{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
			{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		}
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue},
		}
		must(s.Kube.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}))
		s.Pass(0)
		n = must(s.Kube.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}))
		var got []string
		for _, taint := range n.Spec.Taints {
			got = append(got, taint.ToString())
		}
		want := []string{"mine:NoSchedule", corev1.TaintNodeDiskPressure + ":NoSchedule"}
		if refused != attempts-1 || !slices.Equal(got, want) || n.Labels["beta.kubernetes.io/os"] != "linux" {
			t.Errorf("after %d conflicts: taints %q, want %q; labels %v", refused, got, want, n.Labels)
		}
		if writes := s.Writes()["patch nodes"]; writes != attempts {
			t.Errorf("%d patches of the node, want %d refused ones and one for all: %v", writes, attempts-1, s.Writes())
		}
	})
}

func TestNoPodIsEvictedWhenAllNodesFallSilent(t *testing.T) {
	own.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		for i := range 10 {
			w.node(fmt.Sprint("n", i), zoneA, true)
			w.pod(fmt.Sprint("p", i), fmt.Sprint("n", i), 0)
			w.Pass(400 * time.Millisecond)
		}
		w.beat(time.Hour)
		if state := w.state(); strings.Contains(state, ":NoExecute") {
			t.Errorf("all are silent, and nodes are tainted:\n%s", state)
		}
		for _, pod := range w.Pods(t) {
			if pod.DeletionTimestamp != nil {
				t.Errorf("%s was evicted", pod.Name)
			}
		}
		// One is back: then the others are at fault, one in ten seconds.
		w.say("n0", corev1.NodeReady, corev1.ConditionTrue)
		w.beat(2*time.Minute, "n0")
		if state := w.state(); strings.Count(state, "NoExecute") != 0 { // most of a small zone are away
			t.Errorf("with one of ten nodes ready:\n%s", state)
		}
		for i := range 5 {
			w.say(fmt.Sprint("n", i), corev1.NodeReady, corev1.ConditionTrue)
		}
		w.beat(20*time.Second, "n0", "n1", "n2", "n3", "n4")
		if n := strings.Count(w.state(), ":NoExecute"); n < 2 || n > 3 {
			t.Errorf("%d nodes were tainted within 20 s, want one in ten seconds", n)
		}
		w.beat(time.Minute, "n0", "n1", "n2", "n3", "n4")
		if n := strings.Count(w.state(), ":NoExecute"); n != 5 {
			t.Errorf("%d of 5 silent nodes are tainted", n)
		}
	})
}

func TestIdleIsIdle(t *testing.T) {
	own.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		w.node("a", nil, true)
		w.pod("web", "a", 300)
		w.beat(time.Minute, "a")
		w.Writes()
		w.beat(time.Hour, "a")
		if writes := w.Writes(); len(writes) > 0 {
			t.Errorf("an idle hour has these writes: %v", writes)
		}
	})
}
