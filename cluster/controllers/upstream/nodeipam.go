package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam"

	"github.com/coracle-project/coracle/cluster/client"
)

// Each node gets 254 addresses for pods, and the usual network of IPv6.
const (
	nodeBits  = 24
	nodeBits6 = 64
)

// PodRanges says where nodes' networks for pods are taken from.
type PodRanges struct {
	// Pods are the networks of all pods, one of each family at most; Services those that no node
	// gets.
	Pods, Services []netip.Prefix
}

// Check says what is wrong, if anything.
func (r PodRanges) Check() error {
	families := map[bool]netip.Prefix{}
	for _, p := range r.Pods {
		bits := nodeBits
		if p.Addr().Is6() {
			bits = nodeBits6
		}
		other, twice := families[p.Addr().Is6()]
		switch {
		case p != p.Masked():
			return fmt.Errorf("%s is no network: that would be %s", p, p.Masked())
		case twice:
			return fmt.Errorf("%s and %s are of the same family: there can be one network of IPv4 and one of IPv6", other, p)
		case p.Bits() > bits || p.Bits() < bits-16:
			return fmt.Errorf("%s does not divide into networks of /%d for nodes: choose a network between /%d and /%d", p, bits, bits-16, bits)
		}
		families[p.Addr().Is6()] = p
		for _, s := range r.Services {
			if s.Overlaps(p) {
				return fmt.Errorf("%s overlaps %s, the network of Services", p, s)
			}
		}
	}
	return nil
}

// NewNodeIPAM returns the controller that gives each node networks for its pods (spec.podCIDRs). It
// starts with the first node.
func NewNodeIPAM(set *client.Set, r PodRanges) *OnDemand {
	return &OnDemand{
		name: "node-ipam", informers: set.Informers, trigger: set.Informers.Core().V1().Nodes().Informer(),
		make: func(ctx context.Context, g *gate) (func(context.Context), error) {
			var pods []*net.IPNet
			var sizes []int
			for _, p := range r.Pods {
				pods = append(pods, network(p))
				if p.Addr().Is6() {
					sizes = append(sizes, nodeBits6)
				} else {
					sizes = append(sizes, nodeBits)
				}
			}
			c, err := ipam.New(ctx, set.Kube, nil, g.Core().V1().Nodes(), ipam.RangeAllocatorType,
				ipam.CIDRAllocatorParams{ClusterCIDRs: pods, NodeCIDRMaskSizes: sizes})
			if err != nil {
				return nil, err
			}
			return c.Run, nil
		},
	}
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
