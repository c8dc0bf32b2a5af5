// Package firewall keeps the nftables table of the built-in network: which source addresses pods
// may use, who may reach them, and their host ports. It changes nothing else in the kernel, and
// keeps no state beyond its socket: the caller says what the pods have.
//
//	t := firewall.New("coracle0", group)  // asks nothing of the kernel yet
//	_ = t.Replace(firewall.Rules{…})      // the whole table, with the pods there are
//	_ = t.Add(pod)                        // a pod comes
//	_ = t.Drop(pod)                       // … and goes
//	t.Close()                             // the table stays
package firewall

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Table is the built-in network's nftables table. Its name is a setting, so that two daemons on
// a host do not meet. Its rules do not change with the pods; what a pod has are elements:
//
//	table inet coracle0 {
//	  set pods4 { type ifname . ether_addr . ipv4_addr }      # pods6: the same for IPv6
//	  map ports4     { type inet_proto . inet_service : ipv4_addr . inet_service }
//	  map addrports4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	  map ports6, addrports6: the same for IPv6
//	  set reached { type ifname; flags dynamic }
//	  set peers4 { type ipv4_addr; flags interval }            # peers6: the same for IPv6
//	  chain sources { type filter hook prerouting priority -450
//	    iifgroup != PODS iifname != lo ip saddr 10.85.0.0/16 drop   # only pods have pods' addresses
//	    iifgroup != PODS return
//	    ip daddr 127.0.0.0/8 drop                              # route_localnet: network/sysctl.go
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
//	    iifname @uplinks4 oifname @uplinks4 drop }             # Rules.Uplinks
//	  chain to_pods {
//	    ct state established,related return
//	    ct status dnat return
//	    ip saddr 10.1.0.0/16 return                            # Rules.Allowed
//	    ip saddr @peers4 return                                # other nodes: Rules.Peers
//	    drop }
//	  chain prerouting { type nat hook prerouting priority dstnat + 1; fib daddr type local jump hostports }
//	  chain output     { type nat hook output priority dstnat + 1; fib daddr type local jump hostports }
//	  chain hostports {
//	    dnat ip  to ip daddr . meta l4proto . th dport map @addrports4
//	    dnat ip  to meta l4proto . th dport map @ports4
//	    …and for ip6, ::1 left out }
//	  chain reached { type nat hook postrouting priority -199
//	    oifgroup != PODS return
//	    ip daddr 224.0.0.0/4 return
//	    ip6 daddr ff00::/8 return
//	    add @reached { oifname } }
//	  chain postrouting { type nat hook postrouting priority srcnat
//	    ip saddr 10.85.0.0/16 oifgroup != PODS oifname != lo masquerade         # pods to elsewhere
//	    ip saddr 127.0.0.0/8 oifgroup PODS snat to 10.85.0.1                    # the host's own localhost:port
//	    ip saddr 10.85.0.0/16 oifgroup PODS ct status dnat snat to 10.85.0.1 }  # a pod to a host port of a pod
//	}
//
// PODS is the group of the pods' links. It accepts nothing: where another table drops forwarded
// packets (firewalld, a DROP policy by docker), the operator must let the pods' ranges through
// there.
type Table struct {
	name string
	pods uint32 // group (ip-link(8)) of the pods' links

	mu     sync.Mutex
	conn   *nftables.Conn // nil until needed
	socket *netlink.Conn  // of conn
	watch  *netlink.Conn  // of the Watch, nil if there is none
}

// New returns the table of a name. group is the group (ip-link(8)) of the pods' links.
func New(name string, group uint32) *Table { return &Table{name: name, pods: group} }

// Rules is what the table is made of.
type Rules struct {
	Subnets  []netip.Prefix // of pods
	Gateways []netip.Addr   // the host's addresses towards pods, one per family in use
	Allowed  []netip.Prefix // what may connect to pods by their own addresses
	Peers    []netip.Prefix // networks of other nodes and their pods, which may do so, too; see SetPeers
	// Uplinks are the interfaces between which nothing is forwarded, by family; nil if anything may
	// be.
	Uplinks map[Family][]string
	Bridge  bool         // pods of an earlier release are on a bridge with the table's name
	Pods    func() []Pod // asked when nothing else can change the table
}

// Pod is what the table knows of a pod.
type Pod struct {
	Link  string           // the host's end
	MAC   net.HardwareAddr // of the pod's end
	IPs   []netip.Addr     // it may send with these from its link; none for a pod on a bridge
	Ports []PodPort
}

func (f *Table) table() *nftables.Table {
	return &nftables.Table{Name: f.name, Family: nftables.TableFamilyINet}
}

// Replace makes the table again, in one transaction: no one sees it half made, and
// connections that are translated already stay so.
func (f *Table) Replace(r Rules) error {
	return f.transaction(func(c *nftables.Conn) error {
		t := f.table()
		renewTable(c, t)
		pods := r.Pods()
		elements := elementsOf(pods)
		for _, p := range pods { // what was noted of them is gone
			elements[reachedName] = append(elements[reachedName], nftables.SetElement{Key: padded(p.Link)})
		}
		for _, s := range f.sets() {
			if err := addSet(c, s, elements[s.Name]); err != nil {
				return err
			}
		}
		f.addSources(c, t, r)
		if err := f.addForward(c, t, r); err != nil {
			return err
		}
		f.addHostPorts(c, t)
		f.addReached(c, t)
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

// Exists reports whether the table is there, as far as can be told.
func (f *Table) Exists() bool {
	c, err := open()
	if err != nil {
		return true
	}
	_, err = c.ListTableOfFamily(f.name, nftables.TableFamilyINet)
	return !errors.Is(err, unix.ENOENT)
}

// Chain is a chain of another program's table.
type Chain struct{ Table, Name string }

// DropsForwarded returns the chains of other tables that drop every forwarded packet
// they do not accept, as far as can be told.
func (f *Table) DropsForwarded() []Chain {
	c, err := open()
	if err != nil {
		return nil
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil
	}
	forwarding := []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}
	var drops []Chain
	for _, ch := range chains {
		if ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookForward &&
			ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop &&
			slices.Contains(forwarding, ch.Table.Family) {
			drops = append(drops, Chain{Table: ch.Table.Name, Name: ch.Name})
		}
	}
	return drops
}

// Remove deletes the table, and the bridge table of earlier releases. Missing tables are not an
// error.
func (f *Table) Remove() error {
	return errors.Join(f.removeTable(f.table()), f.RemoveBridgeTable())
}

// RemoveBridgeTable deletes what earlier releases had for their bridge.
func (f *Table) RemoveBridgeTable() error {
	err := f.removeTable(&nftables.Table{Name: f.name, Family: nftables.TableFamilyBridge})
	if errors.Is(err, unix.EOPNOTSUPP) { // a kernel without tables for bridges
		return nil
	}
	return err
}

func (f *Table) removeTable(t *nftables.Table) error {
	return f.transaction(func(c *nftables.Conn) error {
		c.AddTable(t)
		c.DelTable(t)
		return nil
	})
}

// Add adds what the table is to know of a pod, all or nothing.
func (f *Table) Add(p Pod) error {
	return f.change(elementsOf([]Pod{p}), (*nftables.Conn).SetAddElements)
}

// Drop removes what the table knows of a pod, all or nothing. It ignores what is not there.
func (f *Table) Drop(p Pod) error { return f.drop(elementsOf([]Pod{p})) }

func (f *Table) drop(elements map[string][]nftables.SetElement) error {
	err := f.change(elements, (*nftables.Conn).SetDeleteElements)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	// A transaction with one unknown element does nothing at all: one by one.
	var errs []error
	for set, list := range elements {
		for _, e := range list {
			err := f.change(map[string][]nftables.SetElement{set: {e}}, (*nftables.Conn).SetDeleteElements)
			if !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (f *Table) change(elements map[string][]nftables.SetElement, op setOp) error {
	if len(elements) == 0 {
		return nil
	}
	return f.transaction(func(c *nftables.Conn) error {
		for _, s := range f.sets() {
			if err := inLists(c, s, elements[s.Name], op); err != nil {
				return err
			}
		}
		return nil
	})
}

// sets are those whose elements change with the pods.
func (f *Table) sets() []*nftables.Set {
	pods := func(name string, id uint32, addr nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table: f.table(), Name: name, ID: id, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, addr),
		}
	}
	return append(f.maps(), pods("pods4", 5, nftables.TypeIPAddr), pods("pods6", 6, nftables.TypeIP6Addr), f.reached())
}

// elementsOf sorts what the table knows of pods into its sets.
func elementsOf(pods []Pod) map[string][]nftables.SetElement {
	elements := map[string][]nftables.SetElement{}
	for _, p := range pods {
		for _, ip := range p.IPs {
			// Each field of a concatenation fills whole registers of 4 bytes.
			key := append(padded(p.Link), p.MAC...)
			key = append(key, 0, 0)
			key = append(key, ip.AsSlice()...)
			set := "pods" + FamilyOf(ip).suffix
			elements[set] = append(elements[set], nftables.SetElement{Key: key})
		}
		for set, list := range portElements(p.Ports) {
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
