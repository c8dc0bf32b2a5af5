package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
)

// The node and its pods reach the addresses, on links of coracled's and of CNI plugins (bridge,
// ptp). Neighbours of all other interfaces that have a route to them do not: on the LAN, behind a
// bridge of virtual machines, on a pods' bridge without being a pod, and with a pod's address.
func TestNeighboursDoNotReachHeldAddresses(t *testing.T) {
	node := newMachine(t)
	lan := node.link("lan", 2)
	node.ip("route add default via 192.0.2.2")
	routed := node.link("cor0", 3)
	node.ip(fmt.Sprintf("link set cor0 group %d", podGroup|4711))
	vms := node.bridge("virbr0", 4, 1)
	bridged := node.bridge("cni0", 5, 2)
	ptp := node.link("veth0", 6)
	ranged := node.link("veth1", 7)
	for _, a := range hostsOf(6, 2) { // as the plugin does
		node.ip(fmt.Sprintf("route add %s/%d dev veth0", a, a.BitLen()))
	}
	for _, a := range hostsOf(5, 2) { // a machine that forges the address of a pod
		args := fmt.Sprintf("addr add %s/%d dev eth0", a, a.BitLen())
		if a.Is6() {
			args += " nodad"
		}
		vms[0].ip(args)
	}
	port, arrived := node.listen()

	type sender struct {
		from    *machine
		network int
		forged  []netip.Addr
	}
	machines := map[string]sender{
		"the node":                             {node, 3, nil},
		"a neighbour on the LAN":               {lan, 2, nil},
		"a machine behind a bridge":            {vms[0], 4, nil},
		"one that has a pod's address":         {vms[0], 4, hostsOf(5, 2)},
		"a pod of coracled's":                  {routed, 3, nil},
		"a pod of the bridge plugin":           {bridged[0], 5, nil},
		"no pod on the bridge plugin's bridge": {bridged[1], 5, nil},
		"a pod of the ptp plugin":              {ptp, 6, nil},
		"a pod in a range":                     {ranged, 7, nil},
	}
	check := func(when string, served ...string) {
		t.Helper()
		for name, m := range machines {
			got := m.from.reaches(port, m.network, arrived, m.forged...)
			if slices.Contains(served, name) && !slices.Equal(got, held) || !slices.Contains(served, name) && len(got) > 0 {
				t.Errorf("%s, %s reaches %v", when, name, got)
			}
		}
	}
	node.ip("addr add 10.96.0.10/32 dev lo scope host")
	node.ip("addr add fd00:96::a/128 dev lo nodad")
	for name, m := range machines { // the kernel makes a route to an IPv6 address some time after the address
		for deadline := time.Now().Add(time.Minute); ; {
			got := m.from.reaches(port, m.network, arrived, m.forged...)
			if slices.Equal(got, held) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s reaches only %v of unprotected addresses: the test shows nothing", name, got)
			}
		}
	}

	pods := NewPods(node.log.Logger(), netip.MustParsePrefix("192.0.7.0/24"), netip.MustParsePrefix("2001:db8:7::/48"))
	set := func(pod string, addrs []netip.Addr) { node.do(func() { pods.Set(pod, addrs) }) }
	set("bridged", hostsOf(5, 2)) // before: of a process that finds pods
	var release func() error
	var err error
	node.do(func() { release, err = Hold(context.Background(), held, pods, node.log.Logger()) }) // takes over what it finds on lo
	if err != nil {
		t.Fatal(err)
	}
	always := []string{"the node", "a pod of coracled's", "a pod in a range"}
	check("at first", append(always, "a pod of the bridge plugin")...)
	set("ptp", hostsOf(6, 2))
	check("with another pod", append(always, "a pod of the bridge plugin", "a pod of the ptp plugin")...)
	set("heir", hostsOf(5, 2))
	set("bridged", nil)
	check("while another pod has the address", append(always, "a pod of the bridge plugin", "a pod of the ptp plugin")...)
	set("heir", nil)
	set("ptp", nil)
	set("ptp", nil)
	check("without pods of plugins", always...)
	if err := errors.Join(release(), release()); err != nil {
		t.Error(err)
	}
	if left := node.left(); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// The kernel is told of pods that CNI plugins have connected, and of no others: the start of the
// others costs nothing.
func TestPodsOnCoraclesLinksNeedNoRules(t *testing.T) {
	node := newMachine(t)
	node.link("cor0", 3)
	node.link("veth0", 4)
	for _, a := range hostsOf(3, 2) {
		node.ip(fmt.Sprintf("route add %s/%d dev cor0 proto %d", a, a.BitLen(), podRoutes))
	}
	pods := NewPods(node.log.Logger())
	var known []string
	node.do(func() {
		release, err := Hold(context.Background(), held, pods, node.log.Logger())
		if err != nil {
			t.Error(err)
			return
		}
		defer func() {
			if err := release(); err != nil {
				t.Error(err)
			}
		}()
		pods.Set("ours", hostsOf(3, 2))
		pods.Set("ours, IPv6", hostsOf(3, 2)[1:])
		pods.Set("a plugin's", hostsOf(4, 2))
		conn, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		for _, name := range []string{"pods4", "pods6"} {
			elements, err := conn.GetSetElements(&nftables.Set{
				Table: &nftables.Table{Name: tableName(held), Family: nftables.TableFamilyINet},
				Name:  name,
			})
			if err != nil {
				t.Error(err)
			}
			for _, e := range elements {
				a, _ := netip.AddrFromSlice(e.Key)
				known = append(known, a.String())
			}
		}
	})
	if want := []string{"192.0.4.2", "2001:db8:4::2"}; !slices.Equal(known, want) {
		t.Errorf("the kernel knows %v, not %v", known, want)
	}
}
