package nodeaddr

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
)

// Pods are the pods of this node that reach held addresses. The kernel knows those on coracled's
// links by the link, so the start of such a pod costs one lookup of a route here. It is told of the
// others, which CNI plugins connect. Its methods may be called concurrently.
type Pods struct {
	log    *slog.Logger
	ranges []netip.Prefix

	mu     sync.Mutex
	addrs  map[string][]netip.Addr // by pod, of those that guards know
	owners map[netip.Addr]int      // how many pods have the address: one that ends may be told of after its heir
	guards map[*guard]bool
	kernel *kernel // nil until needed
}

// NewPods returns Pods. All addresses of ranges are pods'; they are for a process that is not told
// of each. log gets failures of Set; it must not be nil.
func NewPods(log *slog.Logger, ranges ...netip.Prefix) *Pods {
	return &Pods{log: log, ranges: ranges, addrs: map[string][]netip.Addr{}, owners: map[netip.Addr]int{}, guards: map[*guard]bool{}}
}

// Set says which addresses a pod has, none when it is gone. A pod's containers are started after
// Set, and reach the held addresses at once. A failure is logged: the pod has everything else.
func (p *Pods) Set(pod string, addrs []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(addrs) > 0 && p.byLinkLocked(addrs[0]) {
		addrs = nil
	}
	before := p.addrs[pod]
	if slices.Equal(before, addrs) {
		return
	}
	p.addrs[pod] = slices.Clone(addrs)
	if len(addrs) == 0 {
		delete(p.addrs, pod)
	}
	var added, removed []netip.Addr
	for _, a := range addrs {
		if p.owners[a]++; p.owners[a] == 1 {
			added = append(added, a)
		}
	}
	for _, a := range before {
		if p.owners[a]--; p.owners[a] == 0 {
			delete(p.owners, a)
			removed = append(removed, a)
		}
	}
	for g := range p.guards {
		if err := g.change(added, removed); err != nil {
			p.log.Error("a pod may not reach the API server or the cluster's DNS; a restart of the cluster process repairs it",
				"pod", pod, "addresses", addrs, "err", err)
		}
	}
}

// byLinkLocked reports whether an address is of a pod on one of coracled's links. In doubt it is
// not.
func (p *Pods) byLinkLocked(addr netip.Addr) bool {
	if p.kernel == nil {
		k, err := dialKernel()
		if err != nil {
			return false
		}
		p.kernel = k
	}
	ours, err := p.kernel.routed(addr)
	return err == nil && ours
}

// guard makes the rules for addresses.
func (p *Pods) guard(addrs []netip.Addr, lo uint32) (*guard, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var known []netip.Addr
	for a := range p.owners {
		known = append(known, a)
	}
	g, err := newGuard(addrs, p.ranges, known, lo)
	if err != nil {
		return nil, err
	}
	p.guards[g] = true
	return g, nil
}

// leave removes the rules.
func (p *Pods) leave(g *guard) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.guards, g)
	return g.remove()
}
