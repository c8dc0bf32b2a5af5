package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/policy/compile"
	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// kernel is what the test's node has instead of nftables. It can fail.
type kernel struct {
	mu      sync.Mutex
	table   *fakeTable // nil if there is none
	opened  int
	removed int
	adopted uint32 // what tables say of links when they are opened
	failure error
	// cutFailure is that of passes over the connections.
	cutFailure error
	flows      []rules.Connection
	calls      []string // that change something
	cuts       int
	cutting    int           // passes that run
	gate       chan struct{} // if not nil, passes wait for something in it
	did        chan struct{}
}

// tell wakes until.
func (k *kernel) tell() {
	select {
	case k.did <- struct{}{}:
	default:
	}
}

func (k *kernel) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failure = err
}

func (k *kernel) open(c rules.Config) (table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure != nil {
		return nil, k.failure
	}
	k.opened++
	if c.Name != "t" {
		return nil, fmt.Errorf("table %q", c.Name)
	}
	k.table = &fakeTable{kernel: k, state: rules.NewState(nil), changed: make(chan struct{}, 1)}
	return k.table, nil
}

func (k *kernel) remove(string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure != nil {
		return k.failure
	}
	k.removed++
	k.table = nil
	return nil
}

type fakeTable struct {
	*kernel
	state    *rules.State
	changed  chan struct{}
	repaired int
	applied  int
	group    uint32
}

func (t *fakeTable) Apply(_ context.Context, c rules.Change) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure != nil {
		return t.failure
	}
	if err := t.state.Apply(c); err != nil {
		return err
	}
	t.applied++
	if c.LinkGroup != nil {
		t.group = *c.LinkGroup
	}
	t.calls = append(t.calls, "apply")
	return nil
}

func (t *fakeTable) Repair(context.Context) (differed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.repaired++
	return true, t.failure
}

func (t *fakeTable) Changed() <-chan struct{} { return t.changed }

func (t *fakeTable) Adopted() (map[netip.Addr]uint32, map[netip.Addr]rules.Pod) { return nil, nil }

func (t *fakeTable) AdoptedLinkGroup() (uint32, bool) { return t.adopted, t.adopted != 0 }

func (t *fakeTable) Cutter() (cutter, error) { return t.cut, nil }

func (t *fakeTable) cut(ctx context.Context, forbidden, gone map[netip.Addr]bool) (cut int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if gate := t.gate; gate != nil {
		t.cutting++
		t.tell()
		t.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
			err = ctx.Err()
		}
		t.mu.Lock()
		t.cutting--
	}
	if err = errors.Join(err, t.cutFailure); err != nil {
		return 0, err
	}
	t.flows = slices.DeleteFunc(t.flows, func(c rules.Connection) bool {
		source, destination := c.Source.Addr(), c.Destination.Addr()
		return gone[source] || gone[destination] || (forbidden[source] || forbidden[destination]) && !t.state.Allowed(c)
	})
	t.cuts++
	t.calls = append(t.calls, "cut")
	return 0, nil
}

func (t *fakeTable) Close() error { return nil }

// node is one with an API.
type node struct {
	*kernel
	t    *testing.T
	api  *fake.Clientset
	p    *Policy
	stop func()

	board     health.Board
	linkGroup func(context.Context) (uint32, error)
	prepare   func(*Policy) // called before Run, may be nil
	// watched waits until a resource is watched.
	watched map[string]func(testing.TB)
}

func newNode(t *testing.T, objects ...any) *node {
	n := unstarted(t, objects...)
	n.start()
	return n
}

func unstarted(t *testing.T, objects ...any) *node {
	n := &node{t: t, api: fake.NewClientset(), kernel: &kernel{did: make(chan struct{}, 1)}}
	n.linkGroup = func(context.Context) (uint32, error) { return 7, nil }
	n.watched = map[string]func(testing.TB){}
	for _, resource := range []string{"pods", "nodes", "networkpolicies"} {
		n.watched[resource] = testkit.Watched(n.api, resource)
	}
	n.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"ns": "x"}}})
	for _, o := range objects {
		n.create(o)
	}
	return n
}

func (n *node) start() {
	n.t.Helper()
	informers := client.NewInformers(n.api)
	var err error
	n.p, err = New(&client.Set{Kube: n.api, Informers: informers}, Options{
		Table: "t", NodeName: "here", Health: n.board.Add("network policies"), LinkGroup: n.linkGroup,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.p.open, n.p.remove = n.open, n.remove
	n.p.did = n.tell
	if n.prepare != nil {
		n.prepare(n.p)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	informers.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- n.p.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
		informers.Shutdown()
	})
	n.t.Cleanup(n.stop)
}

func (n *node) synced() {
	n.t.Helper()
	select {
	case <-n.p.ready:
	case <-time.After(patience):
		n.t.Fatal("the informers do not sync")
	}
}

const patience = time.Minute

func (n *node) create(object any) {
	n.t.Helper()
	ctx, o := n.t.Context(), metav1.CreateOptions{}
	var err error
	switch object := object.(type) {
	case *corev1.Namespace:
		_, err = n.api.CoreV1().Namespaces().Create(ctx, object, o)
	case *corev1.Pod:
		_, err = n.api.CoreV1().Pods(object.Namespace).Create(ctx, object, o)
	case *corev1.Node:
		_, err = n.api.CoreV1().Nodes().Create(ctx, object, o)
	case *networkingv1.NetworkPolicy:
		_, err = n.api.NetworkingV1().NetworkPolicies(object.Namespace).Create(ctx, object, o)
	default:
		n.t.Fatalf("no object of the tests: %T", object)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// delete deletes an object of the API, when the node watches its kind.
func (n *node) delete(object any) {
	n.t.Helper()
	ctx, o := n.t.Context(), metav1.DeleteOptions{}
	var err error
	switch object := object.(type) {
	case *corev1.Pod:
		n.watched["pods"](n.t)
		err = n.api.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, o)
	case *corev1.Node:
		n.watched["nodes"](n.t)
		err = n.api.CoreV1().Nodes().Delete(ctx, object.Name, o)
	case *networkingv1.NetworkPolicy:
		n.watched["networkpolicies"](n.t)
		err = n.api.NetworkingV1().NetworkPolicies(object.Namespace).Delete(ctx, object.Name, o)
	default:
		n.t.Fatalf("no object of the tests: %T", object)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// until waits for a condition that a sync leads to.
func (n *node) until(what string, holds func() bool) {
	n.t.Helper()
	late := time.After(patience)
	for {
		n.mu.Lock()
		ok := holds()
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-n.did:
		case <-late:
			n.t.Fatal("did not happen: " + what)
		}
	}
}

// allowed asks the fake kernel, whose lock is held.
func (n *node) allowed(c rules.Connection) bool { return n.table == nil || n.table.state.Allowed(c) }

func pod(name, ip string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(name), Labels: map[string]string{"pod": name}},
		Spec:       corev1.PodSpec{NodeName: "here"},
	}
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	return p
}

func denyAll() *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "deny"},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pod": "a"}}},
	}
}

func tcp(from, to string) rules.Connection {
	return rules.Connection{Protocol: 6, Source: netip.MustParseAddrPort(from + ":40000"), Destination: netip.MustParseAddrPort(to + ":80")}
}

// Without a policy there is no table, and what an earlier process left is removed. The first policy
// makes the table, the last one removes it.
func TestTableExistsWhilePoliciesDo(t *testing.T) {
	t.Parallel()
	n := newNode(t, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
	n.until("an old table is removed", func() bool { return n.removed == 1 })
	for range 2 {
		n.create(denyAll())
		n.until("the policy is in force", func() bool {
			return n.table != nil && n.table.group == 7 && !n.allowed(tcp("10.0.0.2", "10.0.0.1"))
		})
		n.mu.Lock()
		if !n.allowed(tcp("10.0.0.1", "10.0.0.2")) {
			t.Error("a pod of which no policy speaks is isolated")
		}
		n.mu.Unlock()
		n.delete(denyAll())
		n.until("the table is gone", func() bool { return n.table == nil })
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opened != 2 || n.removed != 3 {
		t.Errorf("opened %d times, removed %d times", n.opened, n.removed)
	}
}

// A pod is admitted without a call to the kernel when there is no policy, and with one when there
// is.
func TestAdmission(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.until("the start", func() bool { return n.removed == 1 })
	a, address := pod("a", ""), []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	if err := n.p.Admit(t.Context(), a, address); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	if n.opened != 0 || len(n.calls) != 0 {
		t.Errorf("calls without a policy: %v", n.calls)
	}
	n.mu.Unlock()

	// The API does not know the address yet.
	n.create(denyAll())
	n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
	next := pod("a2", "")
	next.Labels["pod"] = "a"
	if err := n.p.Admit(t.Context(), next, []netip.Addr{netip.MustParseAddr("10.0.0.2")}); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	if n.allowed(tcp("10.0.0.9", "10.0.0.2")) {
		t.Error("a pod is admitted before its policies are in force")
	}
	n.mu.Unlock()

	// Another sandbox.
	if err := n.p.Admit(t.Context(), next, []netip.Addr{netip.MustParseAddr("10.0.0.3")}); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	if n.allowed(tcp("10.0.0.9", "10.0.0.3")) || !n.allowed(tcp("10.0.0.9", "10.0.0.2")) {
		t.Error("the pod's rules are not those of its new address")
	}
	n.mu.Unlock()

	n.p.Gone(next.UID)
	n.until("nothing is left", func() bool { return n.allowed(tcp("10.0.0.9", "10.0.0.3")) })
	n.p.Gone(a.UID)
	n.p.Gone("never seen")
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	if len(n.p.pods.Entries)+len(n.p.admitted.Entries) != 0 {
		t.Errorf("kept are %v, %v", n.p.pods, n.p.admitted)
	}
}

// A pod of the node's network has no policies, and is not kept.
func TestHostNetworkIsNotAdmitted(t *testing.T) {
	t.Parallel()
	n := newNode(t, denyAll())
	p := pod("a", "")
	p.Spec.HostNetwork = true
	if err := n.p.Admit(t.Context(), p, []netip.Addr{netip.MustParseAddr("192.0.2.1")}); err != nil || len(n.p.admitted.Entries) != 0 {
		t.Errorf("%v, %v", err, n.p.admitted)
	}
}

// A kernel that refuses the rules keeps isolated pods from starting, and no others. It is tried
// again.
func TestKernelThatFails(t *testing.T) {
	t.Parallel()
	n := newNode(t, pod("a", "10.0.0.1"))
	n.until("the start", func() bool { return n.removed == 1 })
	broken := errors.New("no nftables")
	for _, existing := range []bool{false, true} {
		if existing {
			n.fail(nil)
			n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
		}
		n.fail(broken)
		if !existing {
			n.create(denyAll())
		}
		isolated := pod("isolated", "")
		isolated.Labels["pod"] = "a"
		admit := func(p *corev1.Pod) error {
			return n.p.Admit(t.Context(), p, []netip.Addr{netip.MustParseAddr("10.0.0.8")})
		}
		n.until("the policy is known", func() bool {
			n.p.mu.Lock()
			defer n.p.mu.Unlock()
			return n.p.state.Policies() == 1
		})
		if err := admit(isolated); !errors.Is(err, broken) || !strings.Contains(err.Error(), "network policies of pod x/isolated") {
			t.Errorf("the error is %v", err)
		}
		if err := admit(pod("free", "")); err != nil {
			t.Errorf("a pod that no policy is about is kept from starting: %v", err)
		}
	}
}

// What others do to the table is repaired.
func TestTableThatOthersChange(t *testing.T) {
	t.Parallel()
	n := newNode(t, pod("a", "10.0.0.1"), denyAll())
	n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
	n.mu.Lock()
	n.table.changed <- struct{}{}
	n.mu.Unlock()
	n.until("it is repaired", func() bool { return n.table.repaired == 1 })
}

// A process that starts again finds its table, and takes no policy back meanwhile.
func TestRestart(t *testing.T) {
	t.Parallel()
	n := newNode(t, pod("a", "10.0.0.1"), denyAll())
	n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
	n.stop()
	n.mu.Lock()
	if n.table == nil || n.removed != 0 {
		t.Error("the table went with the process")
	}
	opened := n.opened
	n.mu.Unlock()
	if err := n.p.Admit(t.Context(), pod("late", ""), []netip.Addr{netip.MustParseAddr("10.0.0.3")}); err == nil {
		t.Error("a pod is admitted by a process that ends")
	}
	n.start()
	n.synced()
	n.until("the policy is in force again", func() bool { return n.opened == opened+1 && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.removed != 0 {
		t.Error("there was a moment without a table")
	}
}

// What is not enforced is told by an Event on the policy.
func TestEventOnThePolicy(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	events, err := n.api.CoreV1().Events("x").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	p := denyAll()
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "x"}}}},
	}
	n.create(p)
	select {
	case e := <-events.ResultChan():
		event := e.Object.(*corev1.Event)
		if event.InvolvedObject.Kind != "NetworkPolicy" || event.InvolvedObject.Name != "deny" || event.Reason != compile.ReasonInvalid ||
			event.Type != corev1.EventTypeWarning || !strings.Contains(event.Message, `ingress[0].from[0]: ipBlock: "x" is no network`) {
			t.Errorf("event %+v", event)
		}
	case <-time.After(patience):
		t.Error("there is no event")
	}
}
