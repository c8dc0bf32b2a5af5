package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// lease is what a pod has of the bridge, and its record's content.
type lease struct {
	Version   int          `json:"version"`
	PodID     string       `json:"podID"`
	Name      string       `json:"name"`
	Namespace string       `json:"namespace"`
	Stage     stage        `json:"stage"`
	NetNS     string       `json:"netns"`
	Link      string       `json:"link"`
	IPs       []netip.Addr `json:"ips"`
	Ports     []hostPort   `json:"ports,omitempty"`

	// retired says, in memory, that the host ports are closed: from then on they may
	// be another pod's and must not be closed again.
	retired bool
}

func (l lease) versioned() lease {
	l.Version = recordVersion
	return l
}

func (l lease) check(podID string) error {
	switch {
	case l.PodID != podID:
		return fmt.Errorf("it belongs to pod %q", l.PodID)
	case !l.Stage.known():
		return fmt.Errorf("unknown stage %q", l.Stage)
	case l.Link != vethName(podID):
		return fmt.Errorf("link %q is not the pod's", l.Link)
	case slices.ContainsFunc(l.IPs, func(ip netip.Addr) bool { return !ip.IsValid() }):
		return errors.New("an address is empty")
	}
	return nil
}

func (l lease) entries() []portEntry {
	var entries []portEntry
	for _, p := range l.Ports {
		for _, ip := range l.IPs {
			if !p.IP.IsValid() || p.IP.BitLen() == ip.BitLen() {
				entries = append(entries, portEntry{p, ip})
			}
		}
	}
	return entries
}

// takeLocked marks addresses as used in the pools that have them.
func (b *bridge) takeLocked(ips []netip.Addr) {
	for _, ip := range ips {
		for _, p := range b.pools {
			if p.subnet.Contains(ip) {
				p.take(ip)
			}
		}
	}
}

func (b *bridge) lease(podID string) (lease, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.leases[podID]
	return l, ok
}

// reserve gives the pod addresses and host ports, in memory.
func (b *bridge) reserve(p Pod, ports []hostPort) (lease, error) {
	l := lease{
		PodID: p.ID, Name: p.Name, Namespace: p.Namespace, NetNS: p.NetNS,
		Stage: adding, Link: vethName(p.ID), Ports: ports,
	}
	v6 := hasIPv6()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ports.claim(p.ID, ports); err != nil {
		return lease{}, err
	}
	for _, pool := range b.pools {
		if pool.subnet.Addr().Is6() && !v6 {
			continue
		}
		ip, err := pool.allocate()
		if err != nil {
			b.freeLocked(l)
			return lease{}, err
		}
		l.IPs = append(l.IPs, ip)
	}
	b.leases[p.ID] = l
	return l, nil
}

func (b *bridge) freeLocked(l lease) {
	b.ports.release(l.PodID, l.Ports)
	for _, ip := range l.IPs {
		for _, pool := range b.pools {
			pool.free(ip)
		}
	}
	delete(b.leases, l.PodID)
}

// keepOnly frees the addresses of a lease that the pod did not take.
func (b *bridge) keepOnly(l lease, given []netip.Addr) lease {
	if len(given) == len(l.IPs) {
		return l
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ip := range l.IPs {
		if slices.Contains(given, ip) {
			continue
		}
		for _, p := range b.pools {
			p.free(ip)
		}
	}
	l.IPs = given
	b.leases[l.PodID] = l
	return l
}

// save records a lease, on disk first.
func (b *bridge) save(l lease) error {
	if err := b.records.write(l.PodID, l); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases[l.PodID] = l
	return nil
}

// Lease is an address or host port in use, for leak checks.
type Lease struct {
	PodID string
	IPs   []netip.Addr
	Link  string // host's end
	// Removing is set while the link is being deleted after Teardown.
	Removing bool
}

func (b *bridge) list() []Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Lease
	for _, l := range b.leases {
		all = append(all, Lease{PodID: l.PodID, IPs: l.IPs, Link: l.Link, Removing: l.Stage == removing})
	}
	return all
}

// subnets returns the prefixes of the pools in force.
func (b *bridge) subnets() []netip.Prefix {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []netip.Prefix
	for _, p := range b.pools {
		all = append(all, p.subnet)
	}
	return all
}
