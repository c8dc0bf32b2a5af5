package policy

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/policy/rules"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

const testTable = "coracle-policy-test"

// live is a node with pods, an API, and the kernel.
type live struct {
	*testnet.Node
	t   testing.TB
	api *fake.Clientset
	p   *Policy
	did chan struct{}
}

func newLive(t testing.TB) *live {
	l := &live{Node: testnet.New(t), t: t, api: fake.NewClientset(), did: make(chan struct{}, 1)}
	for _, ns := range []string{"x", "y"} {
		if _, err := l.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"ns": ns}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// run enforces policies until stop is called, or the test ends.
func (l *live) run() (stop func()) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.t.Context()))
	informers := client.NewInformers(l.api)
	var err error
	l.p, err = New(&client.Set{Kube: l.api, Informers: informers}, Options{
		Table: testTable, NodeName: "here", PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:244::/64")},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.p.did = func() {
		select {
		case l.did <- struct{}{}:
		default:
		}
	}
	informers.Start(ctx.Done())
	done := make(chan error, 1)
	if _, measured := l.t.(*testing.B); measured {
		// A loop that is bound to a thread would take most of its time to change threads.
		l.p.open = func(c rules.Config) (t table, err error) {
			l.Within(func() { t, err = openTable(c) })
			return within{t, l}, err
		}
		l.p.remove = func(name string) (err error) {
			l.Within(func() { err = rules.Remove(name) })
			return err
		}
		go func() { done <- l.p.Run(ctx) }()
	} else {
		go l.Within(func() { done <- l.p.Run(ctx) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Error(err)
		}
		informers.Shutdown()
	})
	l.t.Cleanup(stop)
	return stop
}

// within is a table in the node's network namespace, for a loop that is not bound to a thread.
type within struct {
	table
	*live
}

func (w within) Cutter() (c cutter, err error) {
	w.Within(func() { c, err = w.table.Cutter() })
	return c, err
}

// object is a pod of the API for a space.
func (l *live) object(ns string, s *testnet.Space) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: s.Name, UID: types.UID(s.Name), Labels: map[string]string{"pod": s.Name}},
		Spec:       corev1.PodSpec{NodeName: "here"},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: s.IPv4.String()}, {IP: s.IPv6.String()}}},
	}
}

func (l *live) pod(ns, name string) *testnet.Space {
	l.t.Helper()
	s := l.Pod(name)
	s.Serve("tcp", 80)
	if _, err := l.api.CoreV1().Pods(ns).Create(l.t.Context(), l.object(ns, s), metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	return s
}

func (l *live) policy(name string, spec networkingv1.NetworkPolicySpec) {
	l.t.Helper()
	if _, err := l.api.NetworkingV1().NetworkPolicies("x").Create(l.t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: spec,
	}, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *live) until(what string, holds func() bool) {
	l.t.Helper()
	late := time.After(testnet.Patience)
	for !holds() {
		select {
		case <-l.did:
		case <-late:
			l.t.Fatal("did not happen: " + what)
		}
	}
}

func at(a netip.Addr) string { return netip.AddrPortFrom(a, 80).String() }

func reaches(from, to *testnet.Space) bool {
	for _, a := range []netip.Addr{to.IPv4, to.IPv6} {
		if _, err := from.Ask("tcp", at(a)); err != nil {
			return false
		}
	}
	return true
}

func refused(from, to *testnet.Space) bool {
	return from.Unanswered("tcp", at(to.IPv4)) == nil && from.Unanswered("tcp", at(to.IPv6)) == nil
}

// Real packets follow real policies: what is forbidden is refused, connections that were allowed
// end, a pod without an entry can do nothing, and all of it outlives the process.
func TestPackets(t *testing.T) {
	t.Parallel()
	l := newLive(t)
	a, b, c := l.pod("x", "a"), l.pod("x", "b"), l.pod("y", "c")
	stop := l.run()
	<-l.did
	if !reaches(b, a) || !reaches(c, a) || !reaches(l.Outside, a) {
		t.Fatal("pods do not reach each other, and there is no policy")
	}
	var open []net.Conn
	for _, target := range []netip.Addr{a.IPv4, a.IPv6} {
		conn, err := c.Dial("tcp", at(target))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		open = append(open, conn)
	}
	l.policy("friends", networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pod": "a"}},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pod": "b"}}},
		}}},
	})
	l.until("a pod of another namespace is refused", func() bool { return refused(c, a) })
	if !reaches(b, a) || !refused(l.Outside, a) || !reaches(l.Outside, c) {
		t.Error("the policy is not enforced as it says")
	}
	if !reaches(&l.Space, a) {
		t.Error("a pod's own node does not reach it")
	}
	for _, conn := range open {
		r := bufio.NewReader(conn)
		if _, err := r.ReadString('\n'); err != nil { // the server's first word, from before
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(testnet.Silence))
		_, _ = conn.Write([]byte("more\n"))
		if got, err := r.ReadString('\n'); err == nil {
			t.Errorf("a connection that is forbidden now goes on: %q", got)
		}
	}
	if l.tracked(b, a) == 0 {
		t.Error("connections that are allowed are not tracked")
	}
	if n := l.tracked(c, a); n > 0 {
		t.Errorf("%d connections that are forbidden are still tracked", n)
	}

	// A pod that no one has told of.
	early := l.Pod("early")
	early.Serve("tcp", 80)
	if !refused(early, b) || !refused(b, early) {
		t.Error("a pod without rules reaches another, or is reached")
	}
	object := l.object("x", early)
	object.Status.PodIPs = nil // which the API does not know
	if err := l.p.Admit(t.Context(), object, []netip.Addr{early.IPv4, early.IPv6}); err != nil {
		t.Fatal(err)
	}
	if !reaches(early, b) || !reaches(b, early) || !refused(early, a) {
		t.Error("the rules of a pod that was admitted are not in force")
	}

	stop()
	if !refused(c, a) || !reaches(b, a) {
		t.Error("the rules went with the process")
	}
	stop = l.run()
	<-l.did
	if !refused(c, a) || !reaches(b, a) {
		t.Error("the rules are not those from before the restart")
	}
	l.Run("nft flush ruleset")
	l.until("what another program removed is back", func() bool { return refused(c, a) })

	if err := l.api.NetworkingV1().NetworkPolicies("x").Delete(t.Context(), "friends", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.until("all is allowed again", func() bool { return reaches(c, a) })
	stop()
	if tables := l.Run("nft list tables"); strings.Contains(tables, testTable) {
		t.Errorf("left is %s", tables)
	}
}

// tracked is how many connections between two pods the kernel tracks.
func (l *live) tracked(from, to *testnet.Space) (n int) {
	l.t.Helper()
	l.Within(func() {
		for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				l.t.Error(err)
			}
			for _, f := range flows {
				source, _ := netip.AddrFromSlice(f.Forward.SrcIP)
				destination, _ := netip.AddrFromSlice(f.Forward.DstIP)
				if is := func(a netip.Addr, s *testnet.Space) bool { return a.Unmap() == s.IPv4 || a == s.IPv6 }; is(source, from) && is(destination, to) {
					n++
				}
			}
		}
	})
	return n
}
