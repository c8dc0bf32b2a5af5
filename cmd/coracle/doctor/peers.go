package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Peer is a part of another node that the control plane of this machine calls.
type Peer struct {
	Name string // of the node
	// Part is what is called, such as "kubelet", and At where, HOST:PORT.
	Part, At string
	// Without says what does not work if it cannot be reached.
	Without string
	// Optional says that the node may not have the part: only silence is a finding then, and a
	// warning.
	Optional bool
	Err      string // why it cannot be reached
	// Dropped is that nothing answered, as where a firewall drops packets.
	Dropped bool
}

const (
	peerPatience = 3 * time.Second
	// mostPeers is how many parts of nodes are called: a firewall mostly cuts off all.
	mostPeers = 32
)

// LayersOf is where a node is asked for layers of images, unless its runtime passes none on.
func LayersOf(node string, addr netip.Addr) Peer {
	return Peer{
		Name: node, Part: "port for layers of images", At: netip.AddrPortFrom(addr, layersPort).String(),
		Without: "layers that it has come from the registry", Optional: true,
	}
}

// callPeers finds out which peers can be reached.
func callPeers(ctx context.Context, peers []Peer) []Peer {
	peers = peers[:min(len(peers), mostPeers)]
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	together(peers, func(p *Peer) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.At)
		if err == nil {
			_ = conn.Close()
			return
		}
		if p.Optional && errors.Is(err, unix.ECONNREFUSED) {
			return
		}
		if cause := errors.Unwrap(err); cause != nil {
			err = cause
		}
		p.Err, p.Dropped = err.Error(), ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded)
	})
	return peers
}

func checkPeers(f *Facts) []Finding {
	if len(f.Peers) == 0 {
		return nil
	}
	const check = "nodes"
	var all []Finding
	for _, p := range f.Peers {
		if p.Err == "" {
			continue
		}
		_, port, _ := net.SplitHostPort(p.At)
		remedy := fmt.Sprintf("see whether it runs there, and let this machine reach TCP port %s of that one", port)
		if p.Dropped {
			remedy = fmt.Sprintf("if that machine is up, a firewall drops TCP port %s from this machine to that one: let it pass there, and in what is "+
				"between them", port)
		}
		level := Error
		if p.Optional {
			level = Warning
		}
		all = append(all, Finding{
			check, level,
			fmt.Sprintf("the %s of node %s cannot be reached at %s, so %s: %s", p.Part, p.Name, p.At, p.Without, p.Err),
			remedy + "; docs/cluster.md lists the ports between machines",
		})
	}
	if len(all) == 0 {
		all = one(check, OK, fmt.Sprintf("all that this machine calls on other nodes can be reached; ports: %d", len(f.Peers)), "")
	}
	return all
}
