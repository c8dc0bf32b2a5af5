package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// defaultServices is the network of Services' addresses, unless up is told another one.
const defaultServices = "10.96.0.0/16"

// secondServices is what examples give Services of the other family.
const secondServices = "fd96:c0ac:1e::/112"

// serviceNetworks reads --service-cidr: a network, or one of each family with a comma between them.
func serviceNetworks(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for one := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(one)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("up: --service-cidr %q is no network, such as %s", one, defaultServices)
		}
		all = append(all, p)
	}
	if len(all) > 2 || len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4() {
		return nil, fmt.Errorf("up: --service-cidr %s: give one network, or one of each family, such as %s,%s", text, defaultServices,
			secondServices)
	}
	return all, nil
}

// checkServiceRange refuses networks of Services' addresses that cannot be this cluster's.
func (u *upRun) checkServiceRange() error {
	if u.supervisor != 0 {
		return nil // they are in use
	}
	networks, err := serviceNetworks(u.o.ServiceCIDR)
	if err != nil {
		return err // check has refused it before
	}
	if before := u.last.ServiceCIDR; before != "" && before != u.o.ServiceCIDR {
		if u.hasData() {
			return fmt.Errorf("up --service-cidr %s: the cluster's Services have addresses of %s: leave the flag out, or remove the cluster "+
				"and all its data with 'coracle down --purge%s'", u.o.ServiceCIDR, before, u.flags())
		}
	}
	n, err := readNodeNetwork()
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	for i, services := range networks {
		what := n.overlaps(services)
		if what == "" {
			continue
		}
		free := strings.Split(networksText(networks), ",")
		free[i] = n.freeRange(services)
		return fmt.Errorf("up: the Services' network %s overlaps %s, which the cluster would cut off: choose a network that this machine does "+
			"not reach, such as --service-cidr %s", services, what, strings.Join(free, ","))
	}
	return nil
}

// networksText is what serviceNetworks reads.
func networksText(networks []netip.Prefix) string {
	texts := make([]string, len(networks))
	for i, p := range networks {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// defaultPods are the networks of pods' addresses, unless up is told other ones: --pod-cidr of
// coracle-kube.
var defaultPods = []string{"10.85.0.0/16", "fd85:c0ac:1e00::/48"}

// noPodCIDR as the only network leaves the addresses of pods to the nodes.
const noPodCIDR = "none"

// podRanges are the networks that each node gets ranges of. A cluster on loopback has no other
// nodes, and gives none.
func (o *upOptions) podRanges() []string {
	bind, err := netip.ParseAddr(o.bind())
	if err != nil || bind.IsLoopback() || slices.Equal(o.PodCIDR, []string{noPodCIDR}) {
		return nil
	}
	all := slices.Clone(o.PodCIDR)
	if len(all) == 0 {
		all = slices.Clone(defaultPods)
	}
	for i, text := range all {
		if network, err := netip.ParsePrefix(text); err == nil {
			all[i] = network.String()
		}
	}
	slices.Sort(all)
	return all
}

// checkPodRanges refuses networks of pods' addresses that cannot be this cluster's, or that this
// machine needs itself. It notes those that Nodes will have ranges of.
func (u *upRun) checkPodRanges() error {
	if u.supervisor != 0 {
		return nil // they are in use
	}
	all := u.o.podRanges()
	if len(all) == 0 {
		return nil
	}
	if before := u.last.PodRanges; len(before) > 0 && !slices.Equal(before, all) && u.hasData() {
		return fmt.Errorf("up: the cluster's nodes have ranges of %s for their pods, not of %s: give --pod-cidr %[1]s, or remove the cluster and "+
			"all its data with 'coracle down --purge%[3]s'", strings.Join(before, ","), strings.Join(all, ","), u.flags())
	}
	u.o.PodRanges = all
	if len(u.o.PodCIDR) == 0 {
		return nil
	}
	n, err := readNodeNetwork()
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	n = n.withoutPods()
	for _, text := range all {
		pods, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("up: --pod-cidr: %w", err)
		}
		if what := n.overlaps(pods); what != "" {
			return fmt.Errorf("up: the pods' network %s overlaps %s, which the nodes would lose: choose another --pod-cidr, which no machine of "+
				"the cluster reaches", pods, what)
		}
	}
	return nil
}

// hasData says whether the cluster has objects from before.
func (u *upRun) hasData() bool {
	_, err := os.Stat(filepath.Join(u.kubeRoot(), "etcd"))
	return err == nil
}

// nodeNetwork is what this machine reaches, and what it is reached by.
type nodeNetwork struct {
	routes    []netlink.Route // of all routing tables but the kernel's own for local addresses
	addresses []netlink.Addr
	loopback  int // the index of lo
	// answers says whether something answers TCP connections to an address of this machine.
	answers func(netip.AddrPort) bool
}

// readNodeNetwork reads it from the kernel.
func readNodeNetwork() (nodeNetwork, error) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return nodeNetwork{}, fmt.Errorf("find lo: %w", err)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // pods come and go
		return nodeNetwork{}, fmt.Errorf("list routes: %w", err)
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nodeNetwork{}, fmt.Errorf("list addresses: %w", err)
	}
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Table == unix.RT_TABLE_LOCAL })
	return nodeNetwork{routes, addresses, lo.Index, func(at netip.AddrPort) bool {
		conn, err := net.DialTimeout("tcp", at.String(), time.Second)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	}}, nil
}

// withoutPods leaves out what coracled and paths to other nodes have for pods: it stays when a
// cluster process is killed, and is the next one's.
func (n nodeNetwork) withoutPods() nodeNetwork {
	gateways := map[netip.Addr]bool{}
	for _, r := range n.routes {
		if p, ok := prefixOf(r.Dst); ok && r.Protocol == podRoutes && r.Type == unix.RTN_UNREACHABLE {
			gateways[p.Addr().Next()] = true
		}
	}
	n.routes = slices.DeleteFunc(n.routes, func(r netlink.Route) bool { return r.Protocol == podRoutes || r.Protocol == peerRoutes })
	n.addresses = slices.DeleteFunc(n.addresses, func(a netlink.Addr) bool {
		p, ok := prefixOf(a.IPNet)
		return ok && (n.held(a) && gateways[p.Addr()] || tunnelDevice.MatchString(linkName(a.LinkIndex)))
	})
	return n
}

// tunnelDevice matches the names of tunnels to other nodes: DeviceOf in cluster/overlay/paths.
var tunnelDevice = regexp.MustCompile(`^coracle([46]|wg)-[0-9]+$`)

// overlaps names what of this machine overlaps a network of Services' addresses, "" for nothing.
func (n nodeNetwork) overlaps(services netip.Prefix) string {
	for _, a := range n.addresses {
		p, ok := prefixOf(a.IPNet)
		if !ok || !services.Overlaps(p.Masked()) {
			continue
		}
		if !n.held(a) {
			return fmt.Sprintf("address %s of %s", p, linkName(a.LinkIndex))
		}
		// The process that held it may have been killed, or it is another cluster's.
		if api := netip.AddrPortFrom(p.Addr(), 443); n.answers(api) {
			return fmt.Sprintf("that of another cluster of this machine, whose API server answers at %s", api)
		}
	}
	for _, r := range n.routes {
		if p, ok := prefixOf(r.Dst); ok && services.Overlaps(p) && leads(r, p) {
			return fmt.Sprintf("the route to %s%s", p, by(r))
		}
	}
	return ""
}

// held says whether an address is one that a cluster process has given the node: cluster/nodeaddr.
func (n nodeNetwork) held(a netlink.Addr) bool {
	ones, bits := a.Mask.Size()
	return a.LinkIndex == n.loopback && a.Scope == unix.RT_SCOPE_HOST && ones == bits
}

// The protocols (rtm_protocol) of coracled's routes (network/link.go), and of those to pods of
// other nodes (cluster/overlay/paths).
const (
	podRoutes  = 85
	peerRoutes = 86
)

// leads says whether a route leads somewhere. What is wider than /8, or /7 for IPv6, is a default
// route, or a part of one: some VPNs have two halves of the address space instead. Other routes
// without an interface keep packets from leaving by the default route; that of coracled is for its
// pods.
func leads(r netlink.Route, to netip.Prefix) bool {
	if to.Addr().Is4() && to.Bits() < 8 || to.Addr().Is6() && to.Bits() < 7 {
		return false
	}
	return r.Type == unix.RTN_UNICAST || r.Type == unix.RTN_LOCAL || r.Type == unix.RTN_UNREACHABLE && r.Protocol == podRoutes
}

// by says which way a route goes.
func by(r netlink.Route) string {
	switch {
	case r.LinkIndex != 0:
		return " by " + linkName(r.LinkIndex)
	case r.Type == unix.RTN_UNREACHABLE:
		return ", the range of coracled's pods"
	}
	return ""
}

// freeRange is a network of the same family that overlaps nothing, or else a placeholder.
func (n nodeNetwork) freeRange(services netip.Prefix) string {
	candidates := []string{defaultServices, "10.112.0.0/16", "172.28.0.0/16", "192.168.224.0/20", "100.72.0.0/16"}
	if services.Addr().Is6() {
		candidates = []string{secondServices, "fdc0:4ac1:e5::/112"}
	}
	for _, c := range candidates {
		if n.overlaps(netip.MustParsePrefix(c)) == "" {
			return c
		}
	}
	return "NETWORK"
}

// linkName is an interface's name, or its index if it has gone.
func linkName(index int) string {
	if link, err := net.InterfaceByIndex(index); err == nil {
		return link.Name
	}
	return "interface " + strconv.Itoa(index)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil { // a default route
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones), true
}
