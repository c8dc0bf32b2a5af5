package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// firewall is the built-in network's nftables table. Its name is a setting, so that two daemons on
// a host do not meet. Its rules do not change with the pods; what a pod has are elements:
//
//	table inet coracle0 {
//	  set pods4 { type ifname . ether_addr . ipv4_addr }      # pods6: the same for IPv6
//	  map ports4     { type inet_proto . inet_service : ipv4_addr . inet_service }
//	  map addrports4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	  map ports6, addrports6: the same for IPv6
//	  set peers4 { type ipv4_addr; flags interval }            # peers6: the same for IPv6
//	  chain sources { type filter hook prerouting priority -450
//	    iifgroup != PODS iifname != lo ip saddr 10.85.0.0/16 drop   # only pods have pods' addresses
//	    iifgroup != PODS return
//	    ip daddr 127.0.0.0/8 drop                              # see route_localnet in sysctl.go
//	    iifname . ether saddr . ip saddr @pods4 return
//	    ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp dport 67 return
//	    icmpv6 type { nd-router-solicit … nd-redirect } drop   # neighbours are permanent, and pods are no routers
//	    iifname . ether saddr . ip6 saddr @pods6 return
//	    ip6 saddr fe80::/10 return                             # the host does not forward it
//	    drop }
//	  chain forward { type filter hook forward priority filter
//	    iifgroup PODS return
//	    oifgroup PODS goto to_pods
//	    ct status dnat return                                  # a Service's connection to another node
//	    iifname @uplinks4 oifname @uplinks4 drop }             # see forwarding.go
//	  chain to_pods {
//	    ct state established,related return
//	    ct status dnat return
//	    ip saddr 10.1.0.0/16 return                            # Config.AllowFrom
//	    ip saddr @peers4 return                                # other nodes: see peers.go
//	    drop }
//	  chain prerouting { type nat hook prerouting priority dstnat; fib daddr type local jump hostports }
//	  chain output     { type nat hook output priority dstnat; fib daddr type local jump hostports }
//	  chain hostports {
//	    dnat ip  to ip daddr . meta l4proto . th dport map @addrports4
//	    dnat ip  to meta l4proto . th dport map @ports4
//	    …and for ip6, ::1 left out }
//	  chain postrouting { type nat hook postrouting priority srcnat
//	    ip saddr 10.85.0.0/16 oifgroup != PODS oifname != lo masquerade         # pods to elsewhere
//	    ip saddr 127.0.0.0/8 oifgroup PODS snat to 10.85.0.1                    # the host's own localhost:port
//	    ip saddr 10.85.0.0/16 oifgroup PODS ct status dnat snat to 10.85.0.1 }  # a pod to a host port of a pod
//	}
//
// PODS is the group of the pods' links (linkGroup). It accepts nothing: where another table drops
// forwarded packets (firewalld, a DROP policy by docker), the operator must let the pods' ranges
// through there.
type firewall struct {
	name string

	mu   sync.Mutex
	conn *nftables.Conn // nil until needed
}

// ruleset is what the table is made of.
type ruleset struct {
	subnets  []netip.Prefix // of pods
	gateways []netip.Addr
	allowed  []netip.Prefix // see Config.AllowFrom
	peers    []netip.Prefix // see peers.go
	// uplinks are the interfaces between which nothing is forwarded, by family; nil if anything may
	// be.
	uplinks map[family][]string
	bridge  bool              // pods of an earlier release are on a bridge
	pods    func() []podEntry // asked when nothing else can change the table
}

// podEntry is what the table knows of a pod.
type podEntry struct {
	link  string
	mac   net.HardwareAddr
	ips   []netip.Addr
	ports []portEntry
}

// portEntry is one host port with the pod's address of one family.
type portEntry struct {
	hostPort
	pod netip.Addr
}

// transaction sends what build adds as one. The socket is kept: when one is closed
// the kernel first waits for whatever it has still to free, 10 ms here (6.18).
func (f *firewall) transaction(build func(*nftables.Conn) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == nil {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		f.conn = c
	}
	err := build(f.conn)
	if err == nil {
		err = f.conn.Flush()
	}
	if err != nil {
		f.closeLocked() // with what is queued, or was not read
		return fmt.Errorf("nftables table %s: %w", f.name, err)
	}
	return nil
}

func (f *firewall) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeLocked()
}

func (f *firewall) closeLocked() {
	if f.conn != nil {
		_ = f.conn.CloseLasting()
		f.conn = nil
	}
}

func (f *firewall) table() *nftables.Table {
	return &nftables.Table{Name: f.name, Family: nftables.TableFamilyINet}
}

// replace makes the table again, in one transaction: no one sees it half made, and
// connections that are translated already stay so.
func (f *firewall) replace(r ruleset) error {
	return f.transaction(func(c *nftables.Conn) error {
		t := f.table()
		renewTable(c, t)
		elements := elementsOf(r.pods())
		for _, s := range f.sets() {
			if err := c.AddSet(s, elements[s.Name]); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
		f.addSources(c, t, r)
		if err := f.addForward(c, t, r); err != nil {
			return err
		}
		f.addHostPorts(c, t)
		f.addPostrouting(c, t, r)
		return nil
	})
}

// renewTable has a transaction begin with an empty table.
func renewTable(c *nftables.Conn, t *nftables.Table) {
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	c.AddTable(t)
}

// exists reports whether the table is there, as far as can be told.
func (f *firewall) exists() bool {
	c, err := nftables.New()
	if err != nil {
		return true
	}
	_, err = c.ListTableOfFamily(f.name, nftables.TableFamilyINet)
	return !errors.Is(err, unix.ENOENT)
}

// dropsForwarded returns the chains of other tables that drop every forwarded packet
// they do not accept, as far as can be told.
func (f *firewall) dropsForwarded() []*nftables.Chain {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(chains, func(ch *nftables.Chain) bool {
		return ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward ||
			ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop ||
			ch.Table.Family != nftables.TableFamilyINet && ch.Table.Family != nftables.TableFamilyIPv4 && ch.Table.Family != nftables.TableFamilyIPv6
	})
}

// remove deletes the table, and the bridge table of earlier releases. Missing tables are not an
// error.
func (f *firewall) remove() error {
	return errors.Join(f.removeTable(f.table()), f.removeBridgeTable())
}

// removeBridgeTable deletes what earlier releases had for their bridge.
func (f *firewall) removeBridgeTable() error {
	err := f.removeTable(&nftables.Table{Name: f.name, Family: nftables.TableFamilyBridge})
	if errors.Is(err, unix.EOPNOTSUPP) { // a kernel without tables for bridges
		return nil
	}
	return err
}

func (f *firewall) removeTable(t *nftables.Table) error {
	return f.transaction(func(c *nftables.Conn) error {
		c.AddTable(t)
		c.DelTable(t)
		return nil
	})
}

// add and drop change what the table knows of a pod, all or nothing.
func (f *firewall) add(p podEntry) error {
	return f.change(elementsOf([]podEntry{p}), (*nftables.Conn).SetAddElements)
}

func (f *firewall) change(elements map[string][]nftables.SetElement,
	op func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error,
) error {
	if len(elements) == 0 {
		return nil
	}
	return f.transaction(func(c *nftables.Conn) error {
		for _, s := range f.sets() {
			if len(elements[s.Name]) == 0 {
				continue
			}
			if err := op(c, s, elements[s.Name]); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
		return nil
	})
}

// sets are those whose elements change with the pods.
func (f *firewall) sets() []*nftables.Set {
	pods := func(name string, id uint32, addr nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table: f.table(), Name: name, ID: id, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, addr),
		}
	}
	return append(f.maps(), pods("pods4", 5, nftables.TypeIPAddr), pods("pods6", 6, nftables.TypeIP6Addr))
}

// maps are those of host ports.
func (f *firewall) maps() []*nftables.Set {
	mapOf := func(name string, id uint32, addr nftables.SetDatatype, key ...nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table: f.table(), Name: name, ID: id, IsMap: true, Concatenation: true,
			KeyType:  nftables.MustConcatSetType(key...),
			DataType: nftables.MustConcatSetType(addr, nftables.TypeInetService),
		}
	}
	proto, port, ip4, ip6 := nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeIPAddr, nftables.TypeIP6Addr
	return []*nftables.Set{
		mapOf("ports4", 1, ip4, proto, port),
		mapOf("ports6", 2, ip6, proto, port),
		mapOf("addrports4", 3, ip4, ip4, proto, port),
		mapOf("addrports6", 4, ip6, ip6, proto, port),
	}
}

// elementsOf sorts what the table knows of pods into its sets.
func elementsOf(pods []podEntry) map[string][]nftables.SetElement {
	elements := map[string][]nftables.SetElement{}
	for _, p := range pods {
		for _, ip := range p.ips {
			// Each field of a concatenation fills whole registers of 4 bytes.
			key := append(padded(p.link), p.mac...)
			key = append(key, 0, 0)
			key = append(key, ip.AsSlice()...)
			set := "pods" + familyOf(ip).suffix
			elements[set] = append(elements[set], nftables.SetElement{Key: key})
		}
		for set, list := range portElements(p.ports) {
			elements[set] = append(elements[set], list...)
		}
	}
	return elements
}

// padded is the name of an interface as the kernel compares it.
func padded(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// portElements sorts host ports into the maps.
func portElements(ports []portEntry) map[string][]nftables.SetElement {
	elements := map[string][]nftables.SetElement{}
	for _, p := range ports {
		family := "4"
		if p.pod.Is6() {
			family = "6"
		}
		name, key := "ports"+family, []byte(nil)
		if p.IP.IsValid() {
			name, key = "addr"+name, p.IP.AsSlice()
		}
		key = append(key, protocols[p.Protocol], 0, 0, 0)
		key = appendPort(key, p.Port)
		elements[name] = append(elements[name], nftables.SetElement{Key: key, Val: appendPort(p.pod.AsSlice(), p.Target)})
	}
	return elements
}

// appendPort appends a port as a field of a concatenation, which fills 4 bytes.
func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

var (
	drop = verdict(expr.VerdictDrop)
	pass = verdict(expr.VerdictReturn)
)
