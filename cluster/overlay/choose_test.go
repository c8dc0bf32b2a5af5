package overlay

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/overlay/paths"
)

// node makes a Node of "10.0.0.2 10.244.2.0/24 …".
func node(t testing.TB, name, what string) Node {
	t.Helper()
	n := Node{Name: name}
	for _, word := range strings.Fields(what) {
		if a, err := netip.ParseAddr(word); err == nil {
			n.Addresses = append(n.Addresses, a)
		} else {
			n.Ranges = append(n.Ranges, netip.MustParsePrefix(word))
		}
	}
	return n
}

// ways makes Ways of "10.0.0.2 by 3 mtu 1500"; a way is direct if it says so at the end.
func ways(lines ...string) map[netip.Addr]paths.Way {
	all := map[netip.Addr]paths.Way{}
	for _, line := range lines {
		words := strings.Fields(line)
		way := paths.Way{Link: 3, MTU: 1500, Direct: slices.Contains(words, "direct")}
		if slices.Contains(words, "1400") {
			way.MTU = 1400
		}
		if slices.Contains(words, "1280") {
			way.MTU = 1280
		}
		all[netip.MustParseAddr(words[0])] = way
	}
	return all
}

const (
	selfBoth = "10.0.0.1 2001:db8::1 10.244.1.0/24 fd00:244:1::/64"
	peerBoth = "10.0.0.2 2001:db8::2 10.244.2.0/24 fd00:244:2::/64"
)

func TestChooseHowANodeIsReached(t *testing.T) {
	direct4 := paths.Path{Range: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("10.0.0.2"), Link: 3}
	direct6 := paths.Path{Range: netip.MustParsePrefix("fd00:244:2::/64"), Via: netip.MustParseAddr("2001:db8::2"), Link: 3}
	tunnel4, tunnel6 := paths.Path{Range: direct4.Range}, paths.Path{Range: direct6.Range}
	for name, c := range map[string]struct {
		self, peer string
		ways       map[netip.Addr]paths.Way
		paths      []paths.Path
		tunnel     string
		mtu        int
		problem    string
	}{
		"both families on a shared link": {
			self: selfBoth, peer: peerBoth, ways: ways("10.0.0.2 direct", "2001:db8::2 direct"),
			paths: []paths.Path{direct4, direct6}, tunnel: "10.0.0.2", mtu: 1450,
		},
		"behind a router": {
			self: selfBoth, peer: peerBoth, ways: ways("10.0.0.2", "2001:db8::2"),
			paths: []paths.Path{tunnel4, tunnel6}, tunnel: "10.0.0.2", mtu: 1450,
		},
		"one family shares a link": {
			self: selfBoth, peer: peerBoth, ways: ways("10.0.0.2 direct", "2001:db8::2"),
			paths: []paths.Path{direct4, tunnel6}, tunnel: "10.0.0.2", mtu: 1450,
		},
		"nodes with IPv6 only, pods with both": {
			self: "2001:db8::1 10.244.1.0/24 fd00:244:1::/64", peer: "2001:db8::2 10.244.2.0/24 fd00:244:2::/64", ways: ways("2001:db8::2 direct"),
			paths: []paths.Path{tunnel4, direct6}, tunnel: "2001:db8::2", mtu: 1430,
		},
		"a smaller MTU on the way": {
			self: selfBoth, peer: peerBoth, ways: ways("10.0.0.2 1400"),
			paths: []paths.Path{tunnel4, tunnel6}, tunnel: "10.0.0.2", mtu: 1350,
		},
		"too small an MTU for IPv6 in a tunnel": {
			self: selfBoth, peer: peerBoth, ways: ways("10.0.0.2 1280"),
			paths: []paths.Path{tunnel4}, tunnel: "10.0.0.2", mtu: 1230, problem: "IPv6 needs 1280",
		},
		"a family that this node has no pods of": {
			self: "10.0.0.1 10.244.1.0/24", peer: peerBoth, ways: ways("10.0.0.2"),
			paths: []paths.Path{tunnel4}, tunnel: "10.0.0.2", mtu: 1450,
		},
		"no common family": {
			self: "2001:db8::1 fd00:244:1::/64", peer: "10.0.0.2 fd00:244:2::/64", ways: ways("10.0.0.2"),
			problem: "no address of a family",
		},
		"no route yet": {
			self: selfBoth, peer: peerBoth, paths: []paths.Path{tunnel4, tunnel6}, tunnel: "10.0.0.2", mtu: 1450,
		},
		"its second address is the one that can be reached": {
			self: selfBoth, peer: "10.9.9.9 " + peerBoth, ways: ways("10.0.0.2 direct", "2001:db8::2 direct"),
			paths: []paths.Path{direct4, direct6}, tunnel: "10.0.0.2", mtu: 1450,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Choose(node(t, "a", c.self), []Node{node(t, "b", c.peer)}, nil, paths.Host{Ways: c.ways})
			if len(got.Peers) != 1 {
				t.Fatalf("%+v", got)
			}
			p := got.Peers[0]
			if !reflect.DeepEqual(p.Paths, c.paths) {
				t.Errorf("paths %+v, want %+v", p.Paths, c.paths)
			}
			if c.tunnel != "" && (p.Tunnel.String() != c.tunnel || p.MTU != c.mtu) {
				t.Errorf("tunnel to %s with MTU %d, want %s, %d", p.Tunnel, p.MTU, c.tunnel, c.mtu)
			}
			if err := got.Problems["b"]; (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("problem %v, want %q", err, c.problem)
			}
		})
	}
}

// taken is what a usual machine has.
var taken = []paths.Taken{
	{Net: netip.MustParsePrefix("10.0.0.1/32"), What: "an address of eth0"},
	{Net: netip.MustParsePrefix("10.0.0.0/24"), What: "the network of eth0", Nodes: true},
	{Net: netip.MustParsePrefix("10.0.0.255/32"), What: "the broadcast address of eth0"},
	{Net: netip.MustParsePrefix("172.16.0.0/12"), What: "a route by eth0", Nodes: true, Ranges: true},
	{Net: netip.MustParsePrefix("10.96.0.0/16"), What: "the network of Services"},
}

// podNetworks have what the table's nodes ask for, so that each is refused for its own reason.
var podNetworks = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.0.0.0/7"), netip.MustParsePrefix("fd00::/8"),
}

// Who chooses a node's name can find one whose hash another node's name has, too.
func TestRefuseAnothersTunnelEnd(t *testing.T) {
	self, good, bad := node(t, "a", selfBoth), node(t, "node-300871", peerBoth), node(t, "node-369907", "10.0.0.3 10.244.3.0/24")
	if paths.MACOf(good.Name) != paths.MACOf(bad.Name) {
		t.Fatal("the names have different hashes: nothing is tried")
	}
	good.Created, bad.Created = time.Unix(1, 0), time.Unix(2, 0)
	host := paths.Host{Ways: ways("10.0.0.2 direct"), Taken: taken}
	got := Choose(self, []Node{bad, good}, nil, host)
	if err := got.Problems[bad.Name]; len(got.Peers) != 1 || got.Peers[0].Name != good.Name || err == nil ||
		!strings.Contains(err.Error(), "another name") {
		t.Errorf("%+v", got)
	}
}

func TestRefuseWhatHarms(t *testing.T) {
	for name, c := range map[string]struct{ node, problem string }{
		"loopback":                         {"127.0.0.1 10.244.3.0/24", "127.0.0.1"},
		"loopback, IPv6":                   {"::1 10.244.3.0/24", "::1"},
		"IPv4 in IPv6":                     {"::ffff:10.0.0.3 10.244.3.0/24", "none by which"},
		"multicast":                        {"224.0.0.1 10.244.3.0/24", "224.0.0.1"},
		"multicast, IPv6":                  {"ff02::1 10.244.3.0/24", "ff02::1"},
		"link-local":                       {"fe80::1 10.244.3.0/24", "fe80::1"},
		"unspecified":                      {"0.0.0.0 10.244.3.0/24", "0.0.0.0"},
		"all machines of the link":         {"10.0.0.255 10.244.3.0/24", "broadcast"},
		"all machines":                     {"255.255.255.255 10.244.3.0/24", "none by which"},
		"this machine's address":           {"10.0.0.1 10.244.3.0/24", "node a"},
		"another node's address":           {"10.0.0.2 10.244.3.0/24", "node b"},
		"the API's address":                {"10.96.0.1 10.244.3.0/24", "the network of Services"},
		"a pod's address":                  {"10.244.2.9 10.244.3.0/24", "the pods of node b"},
		"an own pod's address":             {"10.244.3.9 10.244.3.0/24", "its own pods"},
		"one good and one hostile address": {"10.0.0.3 127.0.0.1 10.244.3.0/24", "127.0.0.1"},
		"this node's range":                {"10.0.0.3 10.244.1.0/25", "node a"},
		"another node's range":             {"10.0.0.3 10.244.2.0/23", "node b"},
		"a node's address in its range":    {"10.0.0.3 10.0.0.0/30", "10.0.0.1"},
		"everything":                       {"10.0.0.3 0.0.0.0/0", "0.0.0.0/0"},
		"a part of the machine's network":  {"10.0.0.3 10.0.0.128/25", "the network of eth0"},
		"what a route leads to":            {"10.0.0.3 172.16.0.0/12", "a route by eth0"},
		"more than a route leads to":       {"10.0.0.3 172.0.0.0/8", "a route by eth0"},
		"the Services' network":            {"10.0.0.3 10.96.4.0/24", "the network of Services"},
		"overlapping ranges of its own":    {"10.0.0.3 10.244.3.0/24 10.244.3.0/25", "overlap"},
		"others' addresses":                {"10.0.0.3 8.8.8.0/24", "pod networks"},
		"half of the internet":             {"10.0.0.3 128.0.0.0/1", "pod networks"},
		"all pods":                         {"10.0.0.3 172.0.0.0/7", "pod networks"},
		"bits behind the range":            {"10.0.0.3 10.244.3.1/24", "no network"},
	} {
		t.Run(name, func(t *testing.T) {
			self, good, bad := node(t, "a", selfBoth), node(t, "b", peerBoth), node(t, "c", c.node)
			good.Created, bad.Created = time.Unix(1, 0), time.Unix(2, 0)
			host := paths.Host{Ways: ways("10.0.0.2 direct"), Taken: taken, Pods: podNetworks}
			want := Choose(self, []Node{good}, nil, host)
			if len(want.Problems) != 0 || len(want.Peers) != 1 {
				t.Fatalf("the node that is good: %+v", want)
			}
			got := Choose(self, []Node{bad, good}, nil, host)
			if err := got.Problems["c"]; err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("problem %v, want one about %q", err, c.problem)
			}
			if !reflect.DeepEqual(got.Peers, want.Peers) {
				t.Errorf("peers %+v, want %+v", got.Peers, want.Peers)
			}
			// A node that was good and says this now stays what it was.
			was := node(t, "c", "10.0.0.4 10.244.4.0/24")
			was.Created = bad.Created
			want = Choose(self, []Node{good, was}, nil, host)
			again := Choose(self, []Node{good, bad}, want.Accepted, host)
			if again.Problems["c"] == nil || !reflect.DeepEqual(again.Peers, want.Peers) {
				t.Errorf("problem %v, peers %+v, want %+v", again.Problems["c"], again.Peers, want.Peers)
			}
		})
	}
}

func TestAPartOfARouteMayBeARange(t *testing.T) {
	got := Choose(node(t, "a", selfBoth), []Node{node(t, "b", "10.0.0.2 172.16.5.0/24")}, nil, paths.Host{Taken: taken})
	if len(got.Peers) != 1 || len(got.Problems) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestWhoHasARangeKeepsIt(t *testing.T) {
	self, first, second := node(t, "a", selfBoth), node(t, "b", peerBoth), node(t, "c", "10.0.0.3 10.244.2.0/24")
	first.Created, second.Created = time.Unix(2, 0), time.Unix(1, 0)
	was := Choose(self, []Node{first}, nil, paths.Host{})
	both := []Node{first, second}
	if got := Choose(self, both, was.Accepted, paths.Host{}); len(got.Peers) != 1 || got.Peers[0].Name != "b" || got.Problems["c"] == nil {
		t.Errorf("with one in force: %+v", got)
	}
	if got := Choose(self, both, nil, paths.Host{}); len(got.Peers) != 1 || got.Peers[0].Name != "c" || got.Problems["b"] == nil {
		t.Errorf("at the start the older one: %+v", got)
	}
	if got := Choose(self, both[1:], was.Accepted, paths.Host{}); len(got.Peers) != 1 || got.Peers[0].Name != "c" || len(got.Problems) != 0 {
		t.Errorf("when the other is gone: %+v", got)
	}
}

func TestANodeWithoutAddressesIsNotReadyYet(t *testing.T) {
	self := node(t, "a", selfBoth)
	registering := []Node{node(t, "b", "10.244.2.0/24"), node(t, "c", "10.0.0.3")}
	if got := Choose(self, registering, nil, paths.Host{}); len(got.Peers)+len(got.Problems) != 0 {
		t.Errorf("%+v", got)
	}
	was := Choose(self, []Node{node(t, "b", peerBoth)}, nil, paths.Host{})
	if got := Choose(self, []Node{node(t, "b", "10.244.2.0/24")}, was.Accepted, paths.Host{}); !reflect.DeepEqual(got.Peers, was.Peers) {
		t.Errorf("a node that had addresses: %+v, want %+v", got.Peers, was.Peers)
	}
	if got := Choose(Node{Name: "a"}, []Node{node(t, "b", peerBoth)}, nil, paths.Host{}); len(got.Peers)+len(got.Problems) != 0 {
		t.Errorf("without pods here: %+v", got)
	}
}

// The time that a change of one of 5,000 nodes takes each of them.
func BenchmarkChoose(b *testing.B) {
	self := node(b, "self", "10.0.0.1 10.128.0.0/24")
	var others []Node
	for i := 1; i <= 5000; i++ {
		others = append(others, Node{
			Name: fmt.Sprint("node-", i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i>>8) + 1, byte(i)})},
			Ranges: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + byte(i>>8), byte(i), 0}), 24)},
		})
	}
	for b.Loop() {
		if c := Choose(self, others, nil, paths.Host{Taken: taken[4:]}); len(c.Peers) != len(others) {
			b.Fatal(c.Problems)
		}
	}
}
