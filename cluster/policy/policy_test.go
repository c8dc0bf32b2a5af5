package policy

import (
	"context"
	"errors"
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
	"github.com/coracle-project/coracle/cluster/policy/compile"
	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// kernel is what the test's node has instead of nftables. It can fail.
type kernel struct {
	mu      sync.Mutex
	table   *fakeTable // nil if there is none
	opened  int
	removed int
	failure error
	config  rules.Config
	flows   []rules.Connection
	calls   []string // that change something
	did     chan struct{}
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
	k.config = c
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
	t.calls = append(t.calls, "apply")
	return nil
}

func (t *fakeTable) Repair(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.repaired++
	return t.failure
}

func (t *fakeTable) Changed() <-chan struct{} { return t.changed }

func (t *fakeTable) Adopted() (map[netip.Addr]uint32, map[netip.Addr]rules.Pod) { return nil, nil }

func (t *fakeTable) Allowed(c rules.Connection) bool { return t.state.Allowed(c) }

func (t *fakeTable) Cut(_ context.Context, pods map[netip.Addr]bool, allowed func(rules.Connection) bool) (cut int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flows = slices.DeleteFunc(t.flows, func(c rules.Connection) bool {
		return (pods[c.Source.Addr()] || pods[c.Destination.Addr()]) && !allowed(c)
	})
	t.calls = append(t.calls, "cut")
	return cut, t.failure
}

func (t *fakeTable) Close() error { return nil }

// node is one with an API.
type node struct {
	*kernel
	t    *testing.T
	api  *fake.Clientset
	p    *Policy
	stop func()
	tell func(*Policy) // called before Run, may be nil
}

func newNode(t *testing.T, objects ...any) *node {
	n := &node{t: t, api: fake.NewClientset(), kernel: &kernel{did: make(chan struct{}, 1)}}
	n.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"ns": "x"}}})
	for _, o := range objects {
		n.create(o)
	}
	n.start()
	n.synced()
	return n
}

func (n *node) start() {
	n.t.Helper()
	informers := client.NewInformers(n.api)
	var err error
	n.p, err = New(&client.Set{Kube: n.api, Informers: informers}, Options{
		Table: "t", NodeName: "here", LinkGroup: func(context.Context) (uint32, error) { return 7, nil },
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.p.open, n.p.remove = n.open, n.remove
	n.p.did = func() {
		select {
		case n.did <- struct{}{}:
		default:
		}
	}
	if n.tell != nil {
		n.tell(n.p)
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
	case *networkingv1.NetworkPolicy:
		_, err = n.api.NetworkingV1().NetworkPolicies(object.Namespace).Create(ctx, object, o)
	default:
		n.t.Fatalf("no object of the tests: %T", object)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) delete(p *networkingv1.NetworkPolicy) {
	n.t.Helper()
	if err := n.api.NetworkingV1().NetworkPolicies(p.Namespace).Delete(n.t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
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
		n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.2", "10.0.0.1")) })
		n.mu.Lock()
		if n.config.LinkGroup != 7 || n.config.Name != "t" || !n.allowed(tcp("10.0.0.1", "10.0.0.2")) {
			t.Errorf("config %+v", n.config)
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
	if len(n.p.pods)+len(n.p.admitted) != 0 {
		t.Errorf("kept are %v, %v", n.p.pods, n.p.admitted)
	}
}

// A pod of the node's network has no policies, and is not kept.
func TestHostNetworkIsNotAdmitted(t *testing.T) {
	t.Parallel()
	n := newNode(t, denyAll())
	p := pod("a", "")
	p.Spec.HostNetwork = true
	if err := n.p.Admit(t.Context(), p, []netip.Addr{netip.MustParseAddr("192.0.2.1")}); err != nil || len(n.p.admitted) != 0 {
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
		// The policy may come after the first attempts.
		late := time.After(patience)
		for err := admit(isolated); !errors.Is(err, broken); err = admit(isolated) {
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-late:
				t.Fatal("an isolated pod is admitted without rules")
			default:
			}
		}
		if err := admit(isolated); !strings.Contains(err.Error(), "network policies of pod x/isolated") {
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

// Connections that a policy forbids are ended, and no others; those of a pod that is gone before
// another one starts with its address.
func TestConnectionsAreEnded(t *testing.T) {
	t.Parallel()
	n := newNode(t, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
	n.until("the start", func() bool { return n.removed == 1 })
	n.mu.Lock()
	n.flows = []rules.Connection{tcp("10.0.0.9", "10.0.0.1"), tcp("10.0.0.1", "10.0.0.9"), tcp("10.0.0.9", "10.0.0.2")}
	n.mu.Unlock()
	n.create(denyAll())
	n.until("a forbidden connection ends", func() bool { return len(n.flows) == 2 && n.flows[0] == tcp("10.0.0.1", "10.0.0.9") })

	b := pod("b", "10.0.0.2")
	if err := n.api.CoreV1().Pods("x").Delete(t.Context(), b.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.until("the pod is gone", func() bool { return !n.has("b") })
	if err := n.p.Admit(t.Context(), pod("next", ""), []netip.Addr{netip.MustParseAddr("10.0.0.2")}); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.flows) != 1 {
		t.Errorf("another pod starts with the connections %v", n.flows)
	}
}

// has says whether a pod is known. The fake kernel's lock is held, which no one takes who has that
// of p.
func (n *node) has(name string) bool {
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	for id := range n.p.pods {
		if id.Name == name {
			return true
		}
	}
	return false
}

// The connections of pods that are gone are ended also if no one takes their addresses.
func TestConnectionsOfPodsThatAreGone(t *testing.T) {
	t.Parallel()
	n := newNode(t, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), denyAll())
	n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
	n.mu.Lock()
	n.flows = []rules.Connection{tcp("10.0.0.9", "10.0.0.2"), tcp("10.0.0.8", "10.0.0.7")}
	n.mu.Unlock()
	if err := n.api.CoreV1().Pods("x").Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.until("its connection ends", func() bool { return len(n.flows) == 1 })
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
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "x"}}}}}
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
