package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// withHeldPasses is a node on which passes over the connections wait until release is called.
func withHeldPasses(t *testing.T, objects ...any) (n *node, release func()) {
	t.Helper()
	n = unstarted(t, objects...)
	n.gate = make(chan struct{})
	gate := n.gate
	n.start()
	return n, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.gate = nil
		close(gate)
	}
}

// isolates is a policy that forbids a pod to receive anything.
func isolates(name string) *networkingv1.NetworkPolicy {
	p := denyAll()
	p.Name, p.Spec.PodSelector = name, metav1.LabelSelector{MatchLabels: map[string]string{"pod": name}}
	return p
}

func (n *node) admit(p *corev1.Pod, address string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- n.p.Admit(n.t.Context(), p, []netip.Addr{netip.MustParseAddr(address)}) }()
	return done
}

func (n *node) admitted(done <-chan error) {
	n.t.Helper()
	select {
	case err := <-done:
		if err != nil {
			n.t.Error(err)
		}
	case <-time.After(patience):
		n.t.Fatal("the pod does not start")
	}
}

// Pods start while a pass runs, and what was forbidden meanwhile takes one pass more, however much
// it is. What was allowed again meanwhile goes on.
func TestPassesOverConnections(t *testing.T) {
	t.Parallel()
	const pods = 20
	var objects []any
	var connections []rules.Connection
	name := func(i int) string { return fmt.Sprint("p", i) }
	address := func(i int) string { return fmt.Sprintf("10.0.1.%d", i) }
	for i := range pods {
		objects = append(objects, pod(name(i), address(i)))
		connections = append(connections, tcp("10.0.0.9", address(i)))
	}
	n, release := withHeldPasses(t, objects...)
	n.mu.Lock()
	n.flows = slices.Clone(connections)
	n.mu.Unlock()
	forbidden := func(i int) bool { return !n.allowed(connections[i]) }
	n.create(isolates(name(0)))
	n.until("a pass runs", func() bool { return n.cutting == 1 })
	for i := 1; i < pods; i++ {
		n.create(isolates(name(i)))
		n.until("another policy is in force", func() bool { return forbidden(i) })
	}
	n.delete(isolates(name(0)))
	n.delete(isolates(name(1)))
	n.until("two pods are not isolated any more", func() bool { return !forbidden(0) && !forbidden(1) })
	next := pod("next", "")
	next.Labels["pod"] = name(2)
	n.admitted(n.admit(next, "10.0.0.2"))
	n.mu.Lock()
	if n.cutting != 1 || n.cuts != 0 || n.allowed(tcp("10.0.0.9", "10.0.0.2")) {
		t.Errorf("%d passes run, %d have ended", n.cutting, n.cuts)
	}
	n.mu.Unlock()
	release()
	n.until("what is forbidden has ended", func() bool { return slices.Equal(n.flows, connections[:2]) })
	n.stop()
	if n.cuts != 2 {
		t.Errorf("%d passes", n.cuts)
	}
}

// A pod that gets the address of one that is gone starts when the connections of that have ended,
// and others start meanwhile.
func TestAddressOfAPodThatIsGone(t *testing.T) {
	t.Parallel()
	n := newNode(t, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), denyAll())
	n.until("the policy is in force", func() bool { return n.cuts == 1 && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
	n.mu.Lock()
	n.gate = make(chan struct{})
	gate := n.gate
	n.flows = []rules.Connection{tcp("10.0.0.9", "10.0.0.2"), tcp("10.0.0.8", "10.0.0.7")}
	n.mu.Unlock()
	n.delete(pod("b", "10.0.0.2"))
	n.until("the pod is gone", func() bool { return !n.has("b") })
	heir := pod("heir", "")
	heir.Labels["pod"] = "a"
	done := n.admit(heir, "10.0.0.2")
	n.until("its rules are in force, and a pass runs", func() bool { return n.cutting == 1 && !n.allowed(tcp("10.0.0.9", "10.0.0.2")) })
	n.admitted(n.admit(pod("other", ""), "10.0.0.3"))
	select {
	case err := <-done:
		t.Errorf("the pod starts before connections of another one have ended: %v", err)
	default:
	}
	n.mu.Lock()
	n.gate = nil
	close(gate)
	n.mu.Unlock()
	n.admitted(done)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(n.flows, []rules.Connection{tcp("10.0.0.8", "10.0.0.7")}) {
		t.Errorf("the pod starts with the connections %v", n.flows)
	}
}

// A pass ends with the process, and with the last policy.
func TestPassThatIsNotWantedAnyMore(t *testing.T) {
	t.Parallel()
	n, _ := withHeldPasses(t, pod("a", "10.0.0.1"))
	n.mu.Lock()
	n.flows = []rules.Connection{tcp("10.0.0.9", "10.0.0.1")}
	n.mu.Unlock()
	for range 2 {
		n.create(denyAll())
		n.until("a pass runs", func() bool { return n.cutting == 1 })
		n.delete(denyAll())
		n.until("it has ended", func() bool { return n.cutting == 0 && n.table == nil })
	}
	n.create(denyAll())
	n.until("a pass runs", func() bool { return n.cutting == 1 })
	n.stop()
	if n.cutting != 0 || len(n.flows) != 1 {
		t.Errorf("%d passes run, and connections are %v", n.cutting, n.flows)
	}
}

// A pass that fails is tried again, and health says so meanwhile. The rules stay in force.
func TestPassThatFails(t *testing.T) {
	t.Parallel()
	n := unstarted(t, pod("a", "10.0.0.1"))
	n.cutFailure = errors.New("no connection tracker")
	n.flows = []rules.Connection{tcp("10.0.0.9", "10.0.0.1")}
	n.start()
	n.create(denyAll())
	n.until("health tells", func() bool {
		s := n.board.States()[0]
		return !s.Healthy && s.Message == "end connections that policies forbid: no connection tracker"
	})
	next := pod("next", "")
	next.Labels["pod"] = "a"
	n.admitted(n.admit(next, "10.0.0.2"))
	n.mu.Lock()
	if n.allowed(tcp("10.0.0.9", "10.0.0.2")) || len(n.flows) != 1 {
		t.Errorf("rules are not in force; connections are %v", n.flows)
	}
	n.cutFailure = nil
	n.mu.Unlock()
	n.until("the next one succeeds", func() bool { return len(n.flows) == 0 && n.board.States()[0].Healthy })
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

	n.delete(pod("b", "10.0.0.2"))
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
	for id := range n.p.pods.Entries {
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
	n.delete(pod("b", "10.0.0.2"))
	n.until("its connection ends", func() bool { return len(n.flows) == 1 })
}
