package policy

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

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
	// tiers, if not nil, are the API's ClusterNetworkPolicies.
	tiers *cachetesting.FakeControllerSource
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
		Table: testTable, NodeName: "here",
		PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:244::/64")},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	if l.tiers != nil {
		definitions := cachetesting.NewFakeControllerSource()
		definitions.Add(definition(true, "v1alpha2"))
		l.p.cluster = newClusterPolicies(l.p)
		l.p.cluster.definition, l.p.cluster.objects = noStreams{definitions}, noStreams{l.tiers}
		l.p.cluster.write = func(context.Context, string, string, []byte) error { return nil }
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
		select {
		case <-l.did: // of this loop; the next one says so itself
		default:
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

// untilCut waits until a connection to one of the pods carries nothing any more. Rules are in force
// before the connections that they forbid are ended.
func (l *live) untilCut(conn net.Conn) {
	l.t.Helper()
	r := bufio.NewReader(conn)
	if _, err := r.ReadString('\n'); err != nil { // the server's first word, from before
		l.t.Fatal(err)
	}
	l.until("a connection that is forbidden now ends", func() bool {
		_ = conn.SetDeadline(time.Now().Add(testnet.Silence))
		_, _ = conn.Write([]byte("more\n"))
		_, err := r.ReadString('\n')
		return err != nil
	})
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
		l.untilCut(conn)
	}
	if l.tracked(b, a) == 0 {
		t.Error("connections that are allowed are not tracked")
	}
	l.until("connections that are forbidden are tracked no more", func() bool { return l.tracked(c, a) == 0 })

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

func (l *live) clusterPolicy(name, spec string) *policyv1alpha2.ClusterNetworkPolicy {
	l.t.Helper()
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// ping returns nil if a pod gets an answer to what has no ports, within a time.
func ping(t *testing.T, from, to *testnet.Space, patience time.Duration) error {
	t.Helper()
	conn := from.ListenIP("ip4:icmp")
	defer conn.Close()
	text := []byte("is " + to.Name + " there?")
	question := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 7, Seq: 1, Data: text}}
	packet, err := question.Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.WriteTo(packet, &net.IPAddr{IP: to.IPv4.AsSlice()}); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	for buffer := make([]byte, 1500); ; {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		answer, err := icmp.ParseMessage(1, buffer[:n])
		if err != nil {
			return err
		}
		if echo, ok := answer.Body.(*icmp.Echo); ok && answer.Type == ipv4.ICMPTypeEchoReply && bytes.Equal(echo.Data, text) {
			return nil
		}
	}
}

// Real packets follow ClusterNetworkPolicies: what is denied is so although a network around it is
// accepted, other ports and protocols pass, and NetworkPolicies have their turn between the tiers.
func TestPacketsInTiers(t *testing.T) {
	t.Parallel()
	l := newLive(t)
	l.tiers = cachetesting.NewFakeControllerSource()
	a, b, c := l.pod("x", "a"), l.pod("x", "b"), l.pod("y", "c")
	l.Outside.Serve("tcp", 80)
	a.Serve("tcp", 81)
	stop := l.run()
	<-l.did
	for _, from := range []*testnet.Space{a, b, c, l.Outside} {
		for _, to := range []*testnet.Space{a, b, c, l.Outside} {
			if from != to && !reaches(from, to) {
				t.Fatalf("%s does not reach %s, and there is no policy", from.Name, to.Name)
			}
		}
	}
	if err := ping(t, c, a, testnet.Patience); err != nil {
		t.Fatalf("pods do not ping each other, and there is no policy: %v", err)
	}
	conn, err := c.Dial("tcp", at(a.IPv4))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wall := l.clusterPolicy("wall", `{tier: Admin, priority: 10, subject: {namespaces: {matchLabels: {ns: x}}},
		ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: "y"}}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}],
		egress: [{action: Deny, to: [{pods: {podSelector: {matchLabels: {pod: b}}}}]}, {action: Accept, to: [{networks: [10.244.0.0/16, "fd00:244::/32"]}]},
			{action: Deny, to: [{networks: [0.0.0.0/0, "::/0"]}]}]}`)
	l.tiers.Add(wall)
	l.until("another namespace is denied", func() bool { return refused(c, a) })
	l.untilCut(conn)
	inTiers := func() {
		t.Helper()
		if !refused(a, b) {
			t.Error("a pod that is denied is reached by the network around it")
		}
		if !reaches(a, c) || !reaches(b, a) || !reaches(l.Outside, a) || !reaches(&l.Space, a) {
			t.Error("what no rule denies is denied")
		}
		if !refused(a, l.Outside) || !reaches(c, l.Outside) {
			t.Error("a network is not denied to the subject, or to others")
		}
		if _, err := c.Ask("tcp", netip.AddrPortFrom(a.IPv4, 81).String()); err != nil {
			t.Errorf("another port is denied: %v", err)
		}
		if err := ping(t, c, a, testnet.Patience); err != nil {
			t.Errorf("another protocol is denied: %v", err)
		}
		if ping(t, a, b, testnet.Silence) == nil {
			t.Error("a pod that is denied is pinged")
		}
	}
	inTiers()
	if !refused(c, b) {
		t.Error("a pod of the subject is reached")
	}
	l.Run("nft flush ruleset")
	l.until("what another program removed is back", func() bool { return refused(c, a) })
	stop()
	inTiers()
	stop = l.run()
	<-l.did
	inTiers()

	// A NetworkPolicy is asked about what is passed on or about what no rule matches.
	l.policy("alone", networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pod": "a"}}})
	l.until("the NetworkPolicy is in force", func() bool { return refused(b, a) })
	accept := l.clusterPolicy("friends",
		`{tier: Admin, priority: 5, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {ns: "y"}}}]}]}`)
	l.tiers.Add(accept)
	l.until("a policy of higher precedence accepts", func() bool { return reaches(c, a) })
	if !refused(b, a) || !refused(l.Outside, a) {
		t.Error("what is accepted is too much")
	}
	if err := l.api.NetworkingV1().NetworkPolicies("x").Delete(t.Context(), "alone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.tiers.Delete(accept.DeepCopy())
	l.tiers.Delete(wall.DeepCopy())
	l.until("all is allowed again", func() bool { return reaches(c, b) && reaches(a, l.Outside) })
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
				if is := func(a netip.Addr, s *testnet.Space) bool {
					return a.Unmap() == s.IPv4 || a == s.IPv6
				}; is(source, from) && is(destination, to) {
					n++
				}
			}
		}
	})
	return n
}
