package network

import (
	"fmt"
	"net/netip"

	"github.com/coracle-project/coracle/internal/netprefix"
)

// pool hands out the addresses of one subnet, in order and round the range, so that
// an address is not used again until all others have been: someone may still
// have the old pod's in a cache. It is not safe for concurrent use.
type pool struct {
	subnet netip.Prefix
	first  netip.Addr // for pods; the one before is the gateway
	last   netip.Addr
	next   netip.Addr
	used   map[netip.Addr]struct{}
}

func newPool(subnet netip.Prefix) (*pool, error) {
	if !subnet.IsValid() {
		return nil, fmt.Errorf("%w: pod subnet is not an address range", ErrConfig)
	}
	subnet = subnet.Masked()
	if subnet.Addr().BitLen()-subnet.Bits() < 2 {
		return nil, fmt.Errorf("%w: pod subnet %s has no room for pods; a gateway and one pod need two host bits", ErrConfig, subnet)
	}
	if subnet.Addr().IsMulticast() || subnet.Addr().IsLoopback() || subnet.Addr().IsUnspecified() || subnet.Addr().Is4In6() {
		return nil, fmt.Errorf("%w: pod subnet %s is not a unicast range", ErrConfig, subnet)
	}
	p := &pool{subnet: subnet, used: map[netip.Addr]struct{}{}}
	p.first = p.gateway().Next()
	p.last = netprefix.Last(subnet)
	if subnet.Addr().Is4() {
		p.last = p.last.Prev() // broadcast
	}
	p.next = p.first
	return p, nil
}

// gateway is the host's address towards pods: the first of the subnet.
func (p *pool) gateway() netip.Addr { return p.subnet.Addr().Next() }

func (p *pool) allocate() (netip.Addr, error) {
	// Of len(used)+1 addresses one is free, if there are that many.
	a := p.next
	for range len(p.used) + 1 {
		if a.Compare(p.last) > 0 || a.Compare(p.first) < 0 {
			a = p.first
		}
		if _, taken := p.used[a]; !taken {
			p.take(a)
			return a, nil
		}
		a = a.Next()
	}
	return netip.Addr{}, fmt.Errorf("%w %s: all %d are in use", ErrExhausted, p.subnet, len(p.used))
}

// take marks an address as used and goes on after it.
func (p *pool) take(a netip.Addr) {
	p.used[a] = struct{}{}
	p.next = a.Next()
}

func (p *pool) free(a netip.Addr) { delete(p.used, a) }
