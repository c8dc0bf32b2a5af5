package overlay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/overlay/paths"
	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

// Node is what a Node object says that matters here.
type Node struct {
	Name    string
	Created time.Time
	// Addresses are the node's InternalIPs, Ranges those of its pods.
	Addresses []netip.Addr
	Ranges    []netip.Prefix
	// Key is the node's public key of WireGuard; zero without one, and on all nodes if this one does
	// not encrypt.
	Key wireguard.Key
}

// Choice is how each node is reached.
type Choice struct {
	Peers []paths.Peer
	// Accepted are the nodes in force, by name. A node that is refused as it is now is here as it
	// was last accepted.
	Accepted map[string]Node
	// Problems say why a node, or one of its ranges, is refused. They have one for a node.
	Problems map[string]error
}

// defaultMTU is Ethernet's, for a node that there is no route to yet.
const defaultMTU = 1500

// Choose decides how each of the other nodes is reached. It depends on its arguments only;
// before is Accepted of the last time.
//
// A node that says something hostile or wrong changes nothing: not for others, and not for itself.
// If two nodes claim the same, the one that has it keeps it. If neither has it, the older one gets
// it.
func Choose(self Node, others []Node, before map[string]Node, host paths.Host) Choice {
	c := Choice{Accepted: map[string]Node{}, Problems: map[string]error{}}
	if len(self.Ranges) == 0 {
		return c
	}
	accepted := claims{ends: map[paths.MAC]string{}}
	if self.encrypts() {
		accepted.keys = map[wireguard.Key]string{}
	}
	accepted.add(self)
	others = slices.Clone(others)
	slices.SortFunc(others, func(a, b Node) int {
		_, hadA := before[a.Name]
		_, hadB := before[b.Name]
		if hadA != hadB {
			if hadA {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range others {
		old, had := before[n.Name]
		if len(n.Ranges) == 0 || len(n.Addresses) == 0 { // a node that registers, or a kubelet that starts
			if !had {
				continue
			}
			n = old
		}
		err := check(n, &accepted, host)
		if err != nil {
			c.Problems[n.Name] = err
			if !had || check(old, &accepted, host) != nil {
				continue
			}
			c.Problems[n.Name] = fmt.Errorf("%w; what it was before stays in force", err)
			n = old
		}
		peer, err := reach(self, n, host)
		if err != nil && c.Problems[n.Name] == nil {
			c.Problems[n.Name] = err
		}
		accepted.add(n)
		c.Accepted[n.Name] = n
		c.Peers = append(c.Peers, peer)
	}
	slices.SortFunc(c.Peers, func(a, b paths.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return c
}

// claims are the ranges and addresses of the nodes that were accepted, in the order of their
// beginnings. None overlaps another of its list.
type claims struct {
	ranges, addresses []claim
	ends              map[paths.MAC]string     // nodes by the addresses of their tunnel ends
	keys              map[wireguard.Key]string // nodes by their keys, nil without encryption
}

type claim struct {
	net  netip.Prefix
	node string
}

func (c *claims) add(n Node) {
	c.ends[paths.MACOf(n.Name)] = n.Name
	if c.keys != nil {
		c.keys[n.Key] = n.Name
	}
	put := func(list []claim, p netip.Prefix) []claim {
		i, _ := slices.BinarySearchFunc(list, p.Addr(), beginning)
		return slices.Insert(list, i, claim{p, n.Name})
	}
	for _, r := range n.Ranges {
		c.ranges = put(c.ranges, r)
	}
	for _, a := range n.Addresses {
		c.addresses = put(c.addresses, netip.PrefixFrom(a, a.BitLen()))
	}
}

func beginning(c claim, a netip.Addr) int { return c.net.Addr().Compare(a) }

// overlapping finds one in a list that overlaps a network.
func overlapping(list []claim, p netip.Prefix) (claim, bool) {
	i, _ := slices.BinarySearchFunc(list, p.Addr(), beginning)
	for _, c := range list[max(i-1, 0):min(i+1, len(list))] {
		if c.net.Overlaps(p) {
			return c, true
		}
	}
	return claim{}, false
}

// check says what is wrong with a node, given those that were accepted before it.
func check(n Node, accepted *claims, host paths.Host) error {
	// The address is a part of a hash, so who chooses a name can find one with another node's.
	if other, ok := accepted.ends[paths.MACOf(n.Name)]; ok {
		return fmt.Errorf("its tunnels would have the addresses of node %s: it needs another name", other)
	}
	if err := accepted.checkKey(n); err != nil {
		return err
	}
	for i, r := range n.Ranges {
		if slices.ContainsFunc(n.Ranges[:i], r.Overlaps) {
			return fmt.Errorf("its pod ranges overlap at %s", r)
		}
		if err := checkRange(r, accepted, host); err != nil {
			return err
		}
	}
	for _, a := range n.Addresses {
		if err := checkAddress(a, n, accepted, host); err != nil {
			return err
		}
	}
	return nil
}

func checkAddress(a netip.Addr, n Node, accepted *claims, host paths.Host) error {
	if err := nodeaddr.CheckInternalIP(a); err != nil {
		return err
	}
	switch {
	case slices.ContainsFunc(n.Ranges, func(r netip.Prefix) bool { return r.Contains(a) }):
		return fmt.Errorf("its address %s is in a range of its own pods", a)
	}
	one := netip.PrefixFrom(a, a.BitLen())
	if other, ok := overlapping(accepted.addresses, one); ok {
		return fmt.Errorf("its address %s is that of node %s", a, other.node)
	}
	if other, ok := overlapping(accepted.ranges, one); ok {
		return fmt.Errorf("its address %s is in the range of the pods of node %s", a, other.node)
	}
	for _, t := range host.Taken {
		if !t.Nodes && t.Net.Contains(a) {
			return fmt.Errorf("its address %s is in %s, %s", a, t.Net, t.What)
		}
	}
	return nil
}

func checkRange(r netip.Prefix, accepted *claims, host paths.Host) error {
	if a := r.Addr(); !r.IsValid() || r != r.Masked() || a.Is4In6() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return fmt.Errorf("its pod range %s is no network for pods", r)
	}
	part := func(p netip.Prefix) bool { return p.Contains(r.Addr()) && p.Bits() < r.Bits() }
	if len(host.Pods) > 0 && !slices.ContainsFunc(host.Pods, part) {
		return fmt.Errorf("its pod range %s is not a part of the cluster's pod networks", r)
	}
	if other, ok := overlapping(accepted.ranges, r); ok {
		return fmt.Errorf("its pod range %s overlaps %s, that of node %s", r, other.net, other.node)
	}
	if other, ok := overlapping(accepted.addresses, r); ok {
		return fmt.Errorf("its pod range %s has %s, the address of node %s", r, other.net.Addr(), other.node)
	}
	for _, t := range host.Taken {
		if r.Overlaps(t.Net) && (!t.Ranges || r.Bits() <= t.Net.Bits()) {
			return fmt.Errorf("its pod range %s overlaps %s, %s", r, t.Net, t.What)
		}
	}
	return nil
}

// reach chooses the paths to a node. The error is about a range that cannot be reached; others can.
func reach(self, n Node, host paths.Host) (paths.Peer, error) {
	p := paths.Peer{Name: n.Name, Addresses: n.Addresses}
	if self.encrypts() {
		p.Key = n.Key
	}
	for _, u := range []paths.Underlay{paths.IPv4, paths.IPv6} {
		if _, ok := addressOf(self, u, nil); !ok {
			continue
		}
		if far, ok := addressOf(n, u, host.Ways); ok {
			p.Tunnel, p.MTU = far, defaultMTU
			if way, ok := host.Ways[far]; ok {
				p.MTU = way.MTU
			}
			p.MTU -= overhead(self, far)
			break
		}
	}
	var errs []error
	for _, r := range n.Ranges {
		family := paths.UnderlayOf(r.Addr())
		if !slices.ContainsFunc(self.Ranges, func(own netip.Prefix) bool { return paths.UnderlayOf(own.Addr()) == family }) {
			continue // no pod here would use it
		}
		path := paths.Path{Range: r}
		via, ok := addressOf(n, family, host.Ways)
		way := host.Ways[via]
		switch {
		case ok && way.Direct && !self.encrypts():
			path.Via, path.Link = via, way.Link
		case !p.Tunnel.IsValid():
			errs = append(errs, fmt.Errorf("its pod range %s cannot be reached: this node has no address of a family that it has one of", r))
			continue
		case family == paths.IPv6 && p.MTU < paths.MinIPv6MTU:
			errs = append(errs, fmt.Errorf("its pod range %s cannot be reached: the link to %s takes packets of %d bytes, "+
				"which leaves %d in a tunnel, and IPv6 needs %d",
				r, p.Tunnel, p.MTU+overhead(self, p.Tunnel), p.MTU, paths.MinIPv6MTU))
			continue
		}
		p.Paths = append(p.Paths, path)
	}
	return p, errors.Join(errs...)
}

// overhead is what a tunnel to an address takes of each packet.
func overhead(self Node, far netip.Addr) int {
	if self.encrypts() {
		return wireguard.Overhead(far)
	}
	return paths.UnderlayOf(far).Overhead()
}

// addressOf returns the node's first address of a family that there is a route to, or its first one
// if there is a route to none.
func addressOf(n Node, family paths.Underlay, ways map[netip.Addr]paths.Way) (first netip.Addr, ok bool) {
	for _, a := range n.Addresses {
		if paths.UnderlayOf(a) != family {
			continue
		}
		if _, reached := ways[a]; reached {
			return a, true
		}
		if !ok {
			first, ok = a, true
		}
	}
	return first, ok
}
