package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Peer is another node of a cluster of this machine's own. The API server calls its kubelet.
type Peer struct {
	Name string
	// Kubelet is HOST:PORT.
	Kubelet string
	Err     string // why it cannot be reached
}

const (
	peerPatience = 3 * time.Second
	// mostPeers is how many nodes are called: a firewall mostly cuts off all.
	mostPeers = 32
)

// callPeers finds out which kubelets can be reached.
func callPeers(ctx context.Context, peers []Peer) []Peer {
	peers = peers[:min(len(peers), mostPeers)]
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	together(peers, func(p *Peer) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Kubelet)
		if err == nil {
			_ = conn.Close()
			return
		}
		if cause := errors.Unwrap(err); cause != nil {
			err = cause
		}
		p.Err = err.Error()
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
		all = append(all, Finding{
			check, Error, fmt.Sprintf(
				"the kubelet of node %s cannot be reached at %s, so logs, exec and metrics of its pods do not work: %s", p.Name, p.Kubelet, p.Err),
			"let this machine reach that TCP port; docs/cluster.md lists the ports between machines",
		})
	}
	if len(all) == 0 {
		all = one(check, OK, fmt.Sprintf("the kubelets of %d other nodes can be reached", len(f.Peers)), "")
	}
	return all
}
