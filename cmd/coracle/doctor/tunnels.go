package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Tunnel is what leads to a range of another node's pods: VXLAN, or WireGuard if packets are
// encrypted. Paths over a link that both nodes share are not looked at.
type Tunnel struct {
	Range netip.Prefix
	// Node is the address of the other machine, invalid if it is not known.
	Node      netip.Addr
	Encrypted bool
	Err       string // why its far end does not answer
}

// Of package overlay, in the cluster's module: the protocol of its routes, and its ports (UDP).
const (
	overlayRoutes  = 86
	vxlanPort      = 8472
	encryptionPort = 51871
)

func (t *Tunnel) port() uint16 {
	if t.Encrypted {
		return encryptionPort
	}
	return vxlanPort
}

const (
	// tunnelPatience is for all tunnels, in which a lost packet is sent again each echoEvery.
	tunnelPatience = 3 * time.Second
	echoEvery      = 500 * time.Millisecond
)

// readTunnels finds the tunnels to other nodes' pods by their routes, and asks the far ends for an
// echo. A far end is the first address of a range, which no pod gets.
func readTunnels(ctx context.Context) ([]Tunnel, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: overlayRoutes}, netlink.RT_FILTER_PROTOCOL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routes to other nodes' pods: %w", err)
	}
	var all []Tunnel
	for _, r := range routes {
		if len(all) == mostPeers {
			break
		}
		l, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil || r.Dst == nil || l.Type() != "vxlan" && l.Type() != "wireguard" {
			continue
		}
		to, ok := netip.AddrFromSlice(r.Dst.IP)
		if !ok {
			continue
		}
		bits, _ := r.Dst.Mask.Size()
		t := Tunnel{Range: netip.PrefixFrom(to.Unmap(), bits).Masked(), Encrypted: l.Type() == "wireguard"}
		if !t.Encrypted {
			t.Node = underlayOf(r)
		}
		all = append(all, t)
	}
	if len(all) > 0 {
		if err := mayEcho(); err != nil { // what no one has asked is not silent
			return nil, fmt.Errorf("ask other nodes' pods for an echo: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelPatience)
	defer cancel()
	together(all, func(t *Tunnel) {
		if err := echo(ctx, t.Range.Addr()); err != nil {
			t.Err = err.Error()
		}
	})
	return all, nil
}

// mayEcho returns an error if this process may not send echoes.
func mayEcho() error {
	conn, err := net.ListenPacket("ip4:icmp", "")
	if errors.Is(err, os.ErrPermission) {
		return err
	}
	if err == nil {
		_ = conn.Close()
	}
	return nil // other errors are about one family
}

// underlayOf returns the machine that the next hop of a route by VXLAN is at.
func underlayOf(r netlink.Route) netip.Addr {
	hops, err := netlink.NeighList(r.LinkIndex, netlink.FAMILY_ALL)
	if err != nil {
		return netip.Addr{}
	}
	forward, err := netlink.NeighList(r.LinkIndex, unix.AF_BRIDGE)
	if err != nil {
		return netip.Addr{}
	}
	for _, hop := range hops {
		if !hop.IP.Equal(r.Gw) {
			continue
		}
		for _, f := range forward {
			if at, ok := netip.AddrFromSlice(f.IP); ok && f.HardwareAddr.String() == hop.HardwareAddr.String() {
				return at.Unmap()
			}
		}
	}
	return netip.Addr{}
}

// echo returns when an address has answered.
func echo(ctx context.Context, to netip.Addr) error {
	e := echoes{to: to, network: "ip4:icmp", protocol: 1, request: ipv4.ICMPTypeEcho, reply: ipv4.ICMPTypeEchoReply}
	if to.Is6() {
		e = echoes{to: to, network: "ip6:ipv6-icmp", protocol: 58, request: ipv6.ICMPTypeEchoRequest, reply: ipv6.ICMPTypeEchoReply}
	}
	conn, err := net.ListenPacket(e.network, "")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	e.conn, e.body.ID, e.body.Data = conn, os.Getpid()&0xffff, []byte("coracle doctor")
	for ctx.Err() == nil {
		answered, err := e.try(ctx)
		if err != nil || answered {
			return err
		}
	}
	return errors.New("no answer")
}

// echoes are requests for an echo, and the answers.
type echoes struct {
	to             netip.Addr
	network        string
	protocol       int
	request, reply icmp.Type
	conn           net.PacketConn
	body           icmp.Echo
}

// try sends a request, and waits for an answer to any until it is time for the next.
func (e *echoes) try(ctx context.Context) (answered bool, err error) {
	e.body.Seq++
	text, err := (&icmp.Message{Type: e.request, Body: &e.body}).Marshal(nil)
	if err != nil {
		return false, err
	}
	if _, err := e.conn.WriteTo(text, &net.IPAddr{IP: e.to.AsSlice()}); err != nil {
		return false, err
	}
	until := time.Now().Add(echoEvery)
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	if err := e.conn.SetReadDeadline(until); err != nil {
		return false, err
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := e.conn.ReadFrom(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil:
			return false, err
		case from.String() == e.to.String() && e.answers(buf[:n]):
			return true, nil
		}
	}
}

// answers says whether a packet is an answer to our requests: the socket gets those of others, too.
func (e *echoes) answers(packet []byte) bool {
	m, err := icmp.ParseMessage(e.protocol, packet)
	if err != nil || m.Type != e.reply {
		return false
	}
	body, ok := m.Body.(*icmp.Echo)
	return ok && body.ID == e.body.ID
}

func checkTunnels(f *Facts) []Finding {
	const check = "tunnels"
	var all []Finding
	told := map[netip.Addr]bool{}
	silent := 0
	for _, t := range f.Tunnels {
		if t.Err == "" {
			continue
		}
		silent++
		if t.Node.IsValid() && told[t.Node] {
			continue // its other family
		}
		told[t.Node] = true
		node, way := "their node", "VXLAN"
		if t.Node.IsValid() {
			node = "the machine " + t.Node.String()
		}
		if t.Encrypted {
			way = "WireGuard"
		}
		all = append(all, Finding{
			check, Error,
			fmt.Sprintf("pods of %s on another node are not reached through %s: %s", t.Range, way, t.Err),
			fmt.Sprintf("if that node is up, a firewall drops UDP port %d from this machine to %s, or from there to this machine: let it pass both ways; "+
				"'coracle doctor' on each of them names its own firewall", t.port(), node),
		})
	}
	if len(f.Tunnels) > 0 && silent == 0 {
		var ranges []string
		for _, t := range f.Tunnels {
			ranges = append(ranges, t.Range.String())
		}
		return one(check, OK, "tunnels lead to other nodes' pods: "+strings.Join(ranges, ", "), "")
	}
	return all
}
