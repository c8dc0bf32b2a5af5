package overlay

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/overlay/paths"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// cluster is a world with an API.
type cluster struct {
	*world
	api *fake.Clientset
	// board has what overlays say, in the order in which they were run.
	board health.Board
}

func newCluster(t *testing.T) *cluster { return &cluster{world: newWorld(t), api: fake.NewClientset()} }

// object is a node's object.
func object(n Node) *corev1.Node {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, CreationTimestamp: metav1.NewTime(n.Created)}}
	for _, r := range n.Ranges {
		o.Spec.PodCIDRs = append(o.Spec.PodCIDRs, r.String())
	}
	for _, a := range n.Addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	return o
}

func (c *cluster) create(n Node) {
	c.t.Helper()
	if _, err := c.api.CoreV1().Nodes().Create(c.t.Context(), object(n), metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) update(n Node) {
	c.t.Helper()
	if _, err := c.api.CoreV1().Nodes().Update(c.t.Context(), object(n), metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) remove(name string) {
	c.t.Helper()
	if err := c.api.CoreV1().Nodes().Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// run has a machine connect its pods, until stop or the test's end.
func (c *cluster) run(m *machine) (stop func()) {
	informers := client.NewInformers(c.api)
	v := New(&client.Set{Kube: c.api, Informers: informers}, Options{
		NodeName: m.Name, Cluster: testCluster, Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Pods: m.closed, Encryption: m.encryption, Health: c.board.Add("pods of other nodes"),
	})
	v.within = func(f func() error) (err error) {
		m.Within(func() { err = f() })
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = v.Run(ctx) })
	informers.Start(ctx.Done())
	stop = sync.OnceFunc(func() { cancel(); running.Wait(); informers.Shutdown() })
	c.t.Cleanup(stop)
	return stop
}

// await waits until a command prints what is wanted.
func (m *machine) await(command string, wanted func(out string) bool) {
	m.t.Helper()
	out := ""
	for deadline := time.Now().Add(testnet.Patience); time.Now().Before(deadline); {
		if out = m.Run(command); wanted(out) {
			return
		}
	}
	m.t.Fatalf("%s: %s: %s", m.Name, command, out)
}

func has(all ...string) func(string) bool {
	return func(out string) bool {
		return !slices.ContainsFunc(all, func(want string) bool { return !strings.Contains(out, want) })
	}
}

func TestNodesComeAndGo(t *testing.T) {
	c := newCluster(t)
	bare := c.a.state()
	c.create(c.a.node)
	stop := map[string]func(){}
	for _, m := range c.machines() {
		stop[m.Name] = c.run(m)
	}
	c.create(c.b.node)
	c.a.await("ip route show proto 86", has("10.244.2.0/24 via 10.0.0.2 dev eth0"))
	c.create(c.c.node)
	for _, m := range c.machines() {
		m.await("ip -6 route show proto 86", func(out string) bool { return strings.Count(out, "fd00:244:") >= 2 })
	}
	c.reaches()
	conn, far := dial(t, c.a.pod, c.b.pod.IPv4), dial(t, c.c.pod, c.b.pod.IPv4)

	// A node gets another address.
	c.b.Run("ip addr add 10.0.0.22/24 dev eth0")
	c.b.node.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.22"), c.b.node.Addresses[1]}
	c.update(c.b.node)
	c.a.await("ip route show proto 86", has("10.244.2.0/24 via 10.0.0.22 dev eth0"))
	c.c.await("bridge fdb show dev coracle4-6443", has("dst 10.0.0.22"))
	c.b.await("ip -d link show coracle4-6443", has("local 10.0.0.22"))
	echo(t, conn, "direct")
	echo(t, far, "tunnelled")

	// A process is replaced, and a node goes meanwhile.
	stop["a"]()
	echo(t, conn, "without a process")
	c.remove("c")
	c.run(c.a)
	c.a.await("ip route show proto 86", func(out string) bool { return !strings.Contains(out, "10.244.3.0/24") })
	echo(t, conn, "with another process")
	c.remove("b")
	c.a.await("ip link show type vxlan", func(out string) bool { return out == "" })
	c.a.await("nft list tables", func(out string) bool { return !strings.Contains(out, "coracle-overlay") })
	if got := c.a.state(); got != bare {
		t.Errorf("left:\n%s\nwant:\n%s", got, bare)
	}
}

func TestARefusedNodeHasAnEvent(t *testing.T) {
	c := newCluster(t)
	for _, m := range c.machines() {
		c.create(m.node)
	}
	c.run(c.a)
	c.a.await("ip route show proto 86", has("10.244.2.0/24", "10.244.3.0/24"))
	c.a.await("ip -6 route show proto 86", has("fd00:244:2::/64", "fd00:244:3::/64"))
	want := c.a.state()
	for name, what := range map[string]string{
		"loopback": "127.0.0.1 10.244.9.0/24", "multicast": "224.0.0.5 10.244.9.0/24", "api": "10.96.0.1 10.244.9.0/24",
		"overlaps": "10.0.0.9 10.244.2.0/25", "host": "10.0.0.9 10.0.0.0/24", "many": "10.0.0.9 10.244.9.0/24",
	} {
		n, said := node(t, name, what), ""
		for name == "many" && len(n.Addresses) <= nodeaddr.MostInternalIPs {
			n.Addresses, said = append(n.Addresses, n.Addresses[len(n.Addresses)-1].Next()), "it has 17 InternalIPs, and 16 are taken"
		}
		c.create(n)
		c.awaitEvent(name, said)
		if got := c.a.state(); got != want {
			t.Errorf("%s: got:\n%s\nwant:\n%s", name, got, want)
		}
	}
}

// awaitEvent waits for the event that a node is refused.
func (c *cluster) awaitEvent(node, said string) {
	c.t.Helper()
	for deadline := time.Now().Add(testnet.Patience); ; {
		events, err := c.api.CoreV1().Events("").List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		if slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == node && e.Reason == "PodsNotConnected" && strings.Contains(e.Message, said)
		}) {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("no Event of node %s", node)
		}
	}
}

// A node that is the only other one, and was never accepted, is refused as loudly.
func TestTheOnlyOtherNodeIsRefused(t *testing.T) {
	c := newCluster(t)
	c.create(c.a.node)
	many := node(t, "many", "10.0.0.9 10.244.9.0/24")
	for len(many.Addresses) <= nodeaddr.MostInternalIPs {
		many.Addresses = append(many.Addresses, many.Addresses[len(many.Addresses)-1].Next())
	}
	c.create(many)
	c.run(c.a)
	c.awaitEvent("many", "it has 17 InternalIPs, and 16 are taken")
	want := "node many is refused: it has 17 InternalIPs, and 16 are taken of a node at most"
	for deadline := time.Now().Add(testnet.Patience); ; {
		now := c.board.States()[0]
		if now.Message == "off: all other nodes are refused" && slices.Equal(now.Warnings, []string{want}) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", now)
		}
	}
}

func TestFormerAddressesCountForAWhile(t *testing.T) {
	old, current := node(t, "b", "10.0.0.2 10.244.2.0/24"), node(t, "b", "10.0.0.22 10.244.2.0/24")
	began := time.Unix(0, 0)
	f := former{}
	f.note(map[string]Node{"b": old}, map[string]Node{"b": current}, began)
	peers := func(at time.Duration) ([]netip.Addr, time.Duration) {
		all := []paths.Peer{{Name: "b", Addresses: current.Addresses}}
		next := f.add(all, began.Add(at))
		return all[0].Addresses, next
	}
	if got, next := peers(time.Second); len(got) != 2 || next != grace-time.Second {
		t.Errorf("%v, again after %v", got, next)
	}
	if got, next := peers(grace); len(got) != 1 || next != 0 {
		t.Errorf("after the grace: %v, again after %v", got, next)
	}
	f.note(map[string]Node{"b": old}, map[string]Node{"b": current}, began)
	f.note(map[string]Node{"b": current}, nil, began)
	if got, _ := peers(0); len(got) != 1 {
		t.Errorf("of a node that has gone: %v", got)
	}
}

// A node that changes its addresses all the time has no more of them than any other.
func TestFormerAddressesAreLimited(t *testing.T) {
	began := time.Unix(0, 0)
	f, before := former{}, node(t, "b", "10.0.0.2 10.244.2.0/24")
	for i := range 3 * nodeaddr.MostInternalIPs {
		after := before
		after.Addresses = []netip.Addr{before.Addresses[0].Next()}
		f.note(map[string]Node{"b": before}, map[string]Node{"b": after}, began.Add(time.Duration(i)*time.Millisecond))
		before = after
	}
	peers := []paths.Peer{{Name: "b", Addresses: before.Addresses}}
	f.add(peers, began.Add(time.Second))
	if got := peers[0].Addresses; len(got) != 1+nodeaddr.MostInternalIPs || !slices.Contains(got, before.Addresses[0].Prev()) {
		t.Errorf("%d addresses: %v", len(got), got)
	}
}

func TestObjectsThatSayNoAddress(t *testing.T) {
	v := &Overlay{Options: Options{NodeName: "a"}}
	for name, change := range map[string]func(*corev1.Node){
		"address": func(o *corev1.Node) { o.Status.Addresses[0].Address = "example.org" },
		"range":   func(o *corev1.Node) { o.Spec.PodCIDRs[0] = "10.244.2.0" },
	} {
		o := object(node(t, "b", peerBoth))
		change(o)
		if _, err := v.nodeOf(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	o := object(node(t, "b", peerBoth))
	o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "b"},
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.1"})
	if n, err := v.nodeOf(o); err != nil || len(n.Addresses) != 2 || len(n.Ranges) != 2 {
		t.Errorf("%+v, %v", n, err)
	}
	o = object(node(t, "a", "127.0.0.1 10.244.1.0/24"))
	if n, err := v.nodeOf(o); err != nil || len(n.Addresses) != 0 {
		t.Errorf("this node, on loopback: %+v, %v", n, err)
	}
}
