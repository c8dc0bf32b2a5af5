package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/coracle-project/coracle/network/firewall"
)

// lease is what a pod has of the built-in network, and its record's content.
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
	// Held are the Ports that the last daemon kept from programs of the node. Earlier releases held
	// none.
	Held []hostPort `json:"held,omitempty"`
	// Routed is false for a pod that an earlier release has put on its bridge.
	Routed bool `json:"routed,omitempty"`

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

// mac is the hardware address of the pod's end.
func (l lease) mac() net.HardwareAddr {
	if len(l.IPs) == 0 {
		return nil
	}
	return macOf(l.IPs[0])
}

// entry returns what the rules must know of the pod. One on a bridge is known by the bridge.
func (l lease) entry() firewall.Pod {
	e := firewall.Pod{Link: l.Link, MAC: l.mac()}
	if l.Routed {
		e.IPs = l.IPs
	}
	for _, p := range l.Ports {
		for _, ip := range l.IPs {
			if !p.IP.IsValid() || p.IP.BitLen() == ip.BitLen() {
				e.Ports = append(e.Ports, firewall.PodPort{HostPort: firewall.HostPort(p), Pod: ip})
			}
		}
	}
	return e
}

// entries returns what the rules must know of all pods, including those that are being connected,
// so that what these have added is not lost, and the links of those that go.
func (b *builtin) entries() []firewall.Pod {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []firewall.Pod
	for _, l := range b.leases {
		if l.Stage == removing {
			all = append(all, firewall.Pod{Link: l.Link})
		} else {
			all = append(all, l.entry())
		}
	}
	return all
}

// takeLocked marks addresses as used in the pools that have them.
func (b *builtin) takeLocked(ips []netip.Addr) {
	for _, ip := range ips {
		for _, p := range b.pools {
			if p.subnet.Contains(ip) {
				p.take(ip)
			}
		}
	}
}

func (b *builtin) lease(podID string) (lease, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.leases[podID]
	return l, ok
}

// errOtherRanges is for a host's side that was made for other ranges of pods.
var errOtherRanges = errors.New("the host has no address towards pods in a range")

// reserve gives the pod addresses and host ports, in memory.
func (b *builtin) reserve(h *host, p Pod, ports []hostPort) (lease, error) {
	l := lease{
		PodID: p.ID, Name: p.Name, Namespace: p.Namespace, NetNS: p.NetNS,
		Stage: adding, Link: vethName(p.ID), Ports: ports, Routed: true,
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ports.claim(p.ID, ports); err != nil {
		return lease{}, err
	}
	for _, pool := range b.pools {
		if slices.Contains(h.unused, pool.subnet) {
			continue
		}
		if !slices.Contains(h.gateways, pool.gateway()) {
			b.freeLocked(l)
			return lease{}, fmt.Errorf("%w: %s", errOtherRanges, pool.subnet)
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

func (b *builtin) free(l lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.freeLocked(l)
}

func (b *builtin) freeLocked(l lease) {
	b.ports.release(l.PodID, l.Ports)
	for _, ip := range l.IPs {
		for _, pool := range b.pools {
			pool.free(ip)
		}
	}
	delete(b.leases, l.PodID)
}

// keepOnly frees the addresses of a lease that the pod did not take.
func (b *builtin) keepOnly(l lease, given []netip.Addr) lease {
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
func (b *builtin) save(l lease) error {
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
	// Bridged is set for a pod that an earlier release has put on its bridge.
	Bridged bool
}

func (b *builtin) list() []Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Lease
	for _, l := range b.leases {
		all = append(all, Lease{PodID: l.PodID, IPs: l.IPs, Link: l.Link, Removing: l.Stage == removing, Bridged: !l.Routed})
	}
	return all
}

// subnets returns the prefixes of the pools in force.
func (b *builtin) subnets() []netip.Prefix {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []netip.Prefix
	for _, p := range b.pools {
		all = append(all, p.subnet)
	}
	return all
}
