package overlay

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/overlay/paths"
	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// allPods are the networks of the world's pods.
var allPods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")}

// encrypt gives the nodes keys.
func (w *world) encrypt() {
	w.t.Helper()
	for _, m := range w.machines() {
		private, err := wireguard.Private(filepath.Join(w.t.TempDir(), "key"))
		if err == nil {
			m.node.Key, err = private.Public()
		}
		if err != nil {
			w.t.Fatal(err)
		}
		m.encryption, m.closed = &Encryption{private: private, public: m.node.Key}, allPods
	}
}

// missing reports whether this kernel cannot encrypt.
func missing(t *testing.T, what string) bool {
	t.Helper()
	k, err := wireguard.Open()
	if errors.Is(err, wireguard.ErrMissing) {
		testnet.Untested(t, what)
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	return false
}

// encryptedWorld has connected nodes that encrypt, or is nil if this kernel cannot.
func encryptedWorld(t *testing.T, what string) *world {
	if missing(t, what) {
		return nil
	}
	w := newWorld(t)
	w.encrypt()
	w.connect()
	return w
}

// wire is a look at all frames that the router has.
type wire int

func (w *world) listen() wire {
	w.t.Helper()
	fd := -1
	w.router.Within(func() {
		var err error
		all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all); err != nil {
			w.t.Fatal(err)
		}
	})
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil { // none is lost
		w.t.Fatal(err)
	}
	return wire(fd)
}

// shows counts the frames since the last call, and those among them with one of the texts.
func (l wire) shows(t *testing.T, texts ...[]byte) (all, with int) {
	t.Helper()
	frame := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(int(l), frame, 0)
		if errors.Is(err, unix.EAGAIN) {
			return all, with
		}
		if err != nil {
			t.Fatal(err)
		}
		all++
		for _, text := range texts {
			if bytes.Contains(frame[:n], text) {
				with++
				break
			}
		}
	}
}

// plain is what packets between pods have: answers of the servers, and headers.
func (w *world) plain() (texts [][]byte) {
	texts = append(texts, []byte("pod of "))
	for _, from := range w.machines() {
		texts = append(texts, from.pod.IPv6.AsSlice())
		for _, to := range w.machines() {
			texts = append(texts, append(from.pod.IPv4.AsSlice(), to.pod.IPv4.AsSlice()...))
		}
	}
	return texts
}

func TestPacketsBetweenPodsAreEncrypted(t *testing.T) {
	w := encryptedWorld(t, "encrypted packets between pods of three nodes")
	if w == nil {
		return
	}
	plain := newWorld(t)
	plain.connect()
	look := plain.listen()
	plain.reaches()
	if all, with := look.shows(t, plain.plain()...); with == 0 {
		t.Fatalf("without encryption, none of %d frames shows what pods send: the look at them proves nothing", all)
	}

	look = w.listen()
	w.reaches()
	for _, to := range []netip.Addr{w.c.pod.IPv4, w.c.pod.IPv6} { // more than fits into a packet
		echo(t, dial(t, w.a.pod, to), strings.Repeat("pod of ", 1<<17))
	}
	if all, with := look.shows(t, w.plain()...); with > 0 || all == 0 {
		t.Errorf("with encryption, %d of %d frames show what pods send", with, all)
	}

	want := w.a.state()
	plan := paths.New(w.a.self(), w.a.choose(w.others(w.a)).Peers)
	for _, change := range []string{
		"ip link del coraclewg-6443", "ip link set coraclewg-6443 down", "ip route del 10.244.2.0/24",
		"ip route del unreachable 10.244.0.0/16 metric 6443", "ip -6 route del unreachable fd00:244::/32 metric 6443",
	} {
		w.a.Run(change)
		deadline := time.After(testnet.Patience)
		for w.a.state() != want {
			select {
			case <-w.a.network.Changed():
			case <-deadline:
				t.Fatalf("%s: not repaired:\n%s\nwant:\n%s", change, w.a.state(), want)
			}
			w.a.Within(func() {
				if err := w.a.network.Apply(t.Context(), plan); err != nil {
					t.Error(err)
				}
			})
		}
	}
	w.reaches()
	w.a.Within(func() {
		if err := paths.Remove(testCluster); err != nil {
			t.Error(err)
		}
	})
	if left := w.a.state(); strings.Contains(left, "coracle") || strings.Contains(left, "proto 8[67]") {
		t.Errorf("left after all was removed:\n%s", left)
	}
}

// Packets in the name of another node's pod count only if they come encrypted.
func TestForgedPacketsAreDropped(t *testing.T) {
	w := encryptedWorld(t, "unencrypted packets in the name of a pod")
	if w == nil {
		return
	}
	intruder := testnet.NewSpace(t, "intruder")
	testnet.Wire(w.router, "intruder", intruder, "eth0")
	w.router.Run("ip link set intruder master lan")
	intruder.Run("ip addr add 10.0.0.66/24 dev eth0")
	intruder.Run("ip addr add 2001:db8::66/64 dev eth0 nodad")
	intruder.Run("ip addr add " + w.c.pod.IPv4.String() + "/32 dev lo")
	intruder.Run("ip addr add " + w.c.pod.IPv6.String() + "/128 dev lo nodad")
	intruder.Run("ip route add " + w.a.pod.IPv4.String() + " via 10.0.0.1 src " + w.c.pod.IPv4.String())
	intruder.Run("ip route add " + w.a.pod.IPv6.String() + " via 2001:db8::1 src " + w.c.pod.IPv6.String())
	type way struct {
		heard, out net.PacketConn
		to         netip.Addr
	}
	ways := []way{
		{w.a.pod.ListenIP("ip4:253"), intruder.ListenIP("ip4:253"), w.a.pod.IPv4},
		{w.a.pod.ListenIP("ip6:253"), intruder.ListenIP("ip6:253"), w.a.pod.IPv6},
	}
	arrives := func(by way, patience time.Duration) bool {
		if _, err := by.out.WriteTo([]byte("x"), &net.IPAddr{IP: by.to.AsSlice()}); err != nil {
			t.Fatal(err)
		}
		_ = by.heard.SetReadDeadline(time.Now().Add(patience))
		_, _, err := by.heard.ReadFrom(make([]byte, 100))
		return err == nil
	}
	for _, by := range ways {
		if arrives(by, testnet.Silence) {
			t.Errorf("an unencrypted packet in the name of another node's pod reached %s", by.to)
		}
	}
	w.a.Run("nft delete table inet coracle-overlay-6443")
	for _, by := range ways {
		if !arrives(by, testnet.Patience) {
			t.Errorf("without the rules, no packet reaches %s either: the test shows nothing", by.to)
		}
	}
}

// What is sent to a node that has no path stays on the machine.
func TestNothingLeavesUnencrypted(t *testing.T) {
	w := encryptedWorld(t, "packets to pods of a node without a key")
	if w == nil {
		return
	}
	var known []paths.Peer
	for _, p := range w.a.choose(w.others(w.a)).Peers {
		if p.Name != "c" {
			known = append(known, p)
		}
	}
	w.a.apply(known)
	look := w.listen()
	leaves := func(to netip.Addr, within time.Duration) bool {
		t.Helper()
		conn, err := w.a.pod.Dial("udp", netip.AddrPortFrom(to, 81).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("some secret of " + to.String())); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(within); ; {
			late := time.Now().After(deadline)
			if _, with := look.shows(t, []byte("some secret of "+to.String())); with > 0 || late {
				return with > 0
			}
		}
	}
	for to, open := range map[netip.Addr]string{
		w.c.pod.IPv4: "ip route del unreachable 10.244.0.0/16 metric 6443",
		w.c.pod.IPv6: "ip -6 route del unreachable fd00:244::/32 metric 6443",
	} {
		if leaves(to, testnet.Silence) {
			t.Errorf("what is sent to %s leaves unencrypted", to)
		}
		w.a.Run(open)
		if !leaves(to, testnet.Patience) {
			t.Errorf("without the route that closes the network, nothing leaves for %s either: the test shows nothing", to)
		}
	}
}

// Nodes learn of each other's keys by the API, and one that is alone stays closed.
func TestNodesConnectByPublishedKeys(t *testing.T) {
	if missing(t, "nodes that publish keys") {
		return
	}
	c := newCluster(t)
	c.encrypt()
	for _, m := range c.machines() {
		m.encryption.node = c.api
		c.create(m.node)
		c.run(m)
	}
	for _, m := range c.machines() {
		for _, family := range []string{"-4", "-6"} {
			m.await("ip "+family+" route show proto 86", func(out string) bool { return strings.Count(out, "dev coraclewg-6443") == 2 })
		}
	}
	c.reaches()
	c.remove("b")
	c.remove("c")
	c.a.await("ip route show proto 86", func(out string) bool { return out == "" })
	c.a.await("ip link show type wireguard", func(out string) bool { return out == "" })
	if routes := c.a.Run("ip route show proto 87"); !strings.Contains(routes, "unreachable 10.244.0.0/16") {
		t.Errorf("a node that is alone lets packets for pods of others out: %q", routes)
	}
	if tables := c.a.Run("nft list tables"); !strings.Contains(tables, "coracle-overlay-6443") {
		t.Errorf("no table, by which \"coracle down\" knows that there is something to remove: %q", tables)
	}
}

func TestRefuseKeys(t *testing.T) {
	host := paths.Host{Ways: ways("10.0.0.2 direct", "10.0.0.3 direct")}
	self := node(t, "a", "10.0.0.1 10.244.1.0/24")
	b, c := node(t, "b", "10.0.0.2 10.244.2.0/24"), node(t, "c", "10.0.0.3 10.244.3.0/24")
	self.Key, b.Key, c.Key = wireguard.Key{1}, wireguard.Key{2}, wireguard.Key{3}
	b.Created, c.Created = time.Unix(2, 0), time.Unix(3, 0)
	good := Choose(self, []Node{b, c}, nil, host)
	if len(good.Problems) > 0 || len(good.Peers) != 2 {
		t.Fatalf("%+v", good)
	}
	for _, p := range good.Peers {
		if p.Key == (wireguard.Key{}) || p.MTU != 1440 || len(p.Paths) != 1 || p.Paths[0].Link != 0 {
			t.Errorf("%+v: want the key, 60 bytes less than Ethernet, and no direct route", p)
		}
	}
	for name, x := range map[string]struct {
		key  wireguard.Key
		want string
	}{
		"none":           {wireguard.Key{}, "it has published no key of WireGuard"},
		"that of a node": {b.Key, "its key of WireGuard is that of node b"},
		"this node's":    {self.Key, "its key of WireGuard is that of node a"},
	} {
		changed := c
		changed.Key = x.key
		first := Choose(self, []Node{b, changed}, nil, host)
		if err := first.Problems["c"]; err == nil || !strings.Contains(err.Error(), x.want) || len(first.Peers) != 1 {
			t.Errorf("%s: %v, %d peers", name, err, len(first.Peers))
		}
		later := Choose(self, []Node{changed, b}, good.Accepted, host)
		if later.Problems["c"] == nil || len(later.Peers) != 2 || later.Accepted["c"].Key != c.Key {
			t.Errorf("%s, after another one: %v, %+v", name, later.Problems, later.Accepted)
		}
	}
	stolen := c // another node's range, with a key of its own
	stolen.Ranges = b.Ranges
	if got := Choose(self, []Node{b, stolen}, nil, host); got.Problems["c"] == nil || len(got.Peers) != 1 || got.Peers[0].Key != b.Key {
		t.Errorf("a range of another node: %+v", got)
	}
	// Without encryption, keys mean nothing.
	self.Key = wireguard.Key{}
	if got := Choose(self, []Node{b, c}, nil, host); got.Peers[0].Key != (wireguard.Key{}) || got.Peers[0].Paths[0].Link == 0 {
		t.Errorf("without encryption: %+v", got.Peers)
	}
}

func TestPublishedKeys(t *testing.T) {
	own, far := wireguard.Key{1}, "4Wm4bXb4QmAN4bbAvyCSRqhwZyYzUDjSAwVyqpZrlkA="
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	v := &Overlay{Options: Options{NodeName: "a", Encryption: &Encryption{public: own, node: kube}}}
	object := func(name, key string) *corev1.Node {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if key != "" {
			o.Annotations = map[string]string{KeyAnnotation: key}
		}
		return o
	}
	for _, was := range []string{"", far, own.String()} {
		kube.ClearActions()
		if err := v.publish(t.Context(), []*corev1.Node{object("b", far), object("a", was)}); err != nil {
			t.Fatal(err)
		}
		n, err := kube.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || n.Annotations[KeyAnnotation] != own.String() {
			t.Errorf("%v, %v", n.Annotations, err)
		}
		if writes := len(kube.Actions()) - 1; (writes > 0) != (was != own.String()) {
			t.Errorf("%d writes of a Node with %q", writes, was)
		}
	}
	if err := v.publish(t.Context(), []*corev1.Node{object("b", far)}); err != nil {
		t.Errorf("before this node is registered: %v", err)
	}
	for text, want := range map[string]string{
		far: "", "": "", "garbage": "44 characters", strings.Repeat("A", 1<<20): "44 characters", strings.Repeat("!", 44): "no WireGuard key",
		base64.StdEncoding.EncodeToString(make([]byte, 32)): "no usable WireGuard key",
	} {
		key, err := v.keyOf(object("b", text))
		if want == "" && (err != nil || text != "" && key.String() != text) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300) {
			t.Errorf("%.50q: %v, %.300v", text, key, err)
		}
	}
	if key, err := v.keyOf(object("a", far)); key != own || err != nil {
		t.Errorf("this node's own: %v, %v", key, err)
	}
	v.Encryption = nil
	if key, err := v.keyOf(object("b", "garbage")); key != (wireguard.Key{}) || err != nil {
		t.Errorf("without encryption: %v, %v", key, err)
	}
}
