package network

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/nftables"

	"github.com/coracle-project/coracle/network/firewall"
)

// Regression: lists of more than 64 KiB of elements were cut without an error. The packets of all
// pods but the first were dropped then, and any address beyond the first nodes' counted as a node.
// More than some 270 messages of a transaction had it fail, as with pods of an earlier range.
func TestTableOfManyPodsAndPeers(t *testing.T) {
	const pods, nodes, earlier = 2000, 1500, 300
	f := firewall.New("many", 7)
	defer f.Close()
	t.Cleanup(func() { must(t, f.Remove()) })
	address := func(base string, i int) netip.Addr {
		b := netip.MustParseAddr(base).AsSlice()
		b[len(b)-2], b[len(b)-1] = byte(i>>8), byte(i)
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	all := make([]firewall.Pod, pods)
	for i := range all {
		ip4 := address("10.85.0.0", i)
		all[i] = firewall.Pod{
			Link: "veth" + ip4.String()[5:], MAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, IPs: []netip.Addr{ip4, address("fd00::", i)},
			Ports: []firewall.PodPort{{HostPort: firewall.HostPort{Protocol: "tcp", Port: uint16(10000 + i), Target: 80}, Pod: ip4}},
		}
	}
	var peers []netip.Prefix
	for i := range nodes {
		peers = append(peers, netip.PrefixFrom(address("198.18.0.0", 2*i), 32), netip.PrefixFrom(address("2001:db8::", 2*i), 128))
	}
	subnets := []netip.Prefix{netip.MustParsePrefix("10.85.0.0/16"), netip.MustParsePrefix("fd00::/64")}
	for i := range earlier {
		a := address("10.86.0.0", i)
		subnets = append(subnets, netip.PrefixFrom(a, a.BitLen()))
	}
	must(t, f.Replace(firewall.Rules{
		Subnets: subnets, Gateways: []netip.Addr{netip.MustParseAddr("10.85.0.1")}, Peers: peers[:2],
		Pods: func() []firewall.Pod { return all[1:] },
	}))
	must(t, f.Add(all[0]))
	must(t, f.SetPeers(peers))

	c, err := nftables.New()
	must(t, err)
	table := &nftables.Table{Name: "many", Family: nftables.TableFamilyINet}
	for set, want := range map[string]int{"pods4": pods, "pods6": pods, "ports4": pods, "peers4": nodes, "peers6": nodes} {
		elements, err := c.GetSetElements(&nftables.Set{Table: table, Name: set})
		must(t, err)
		begin, end := 0, 0
		for _, e := range elements {
			if e.IntervalEnd {
				end++
			} else {
				begin++
			}
		}
		if isInterval := set[:5] == "peers"; begin != want || isInterval && end < want {
			t.Errorf("%s has %d elements and %d ends, want %d", set, begin, end, want)
		}
	}
}
