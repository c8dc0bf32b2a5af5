package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/keylock"
)

// bridge is the built-in network: a bridge on the host with the first address of
// every pod subnet, a veth pair to each pod, nftables for what leaves the host
// and for host ports.
//
// A pod's link is deleted in the background (reaper.go), because the kernel takes
// milliseconds for that; its addresses stay taken until it is done.
type bridge struct {
	name    string
	mtu     int // 0: that of the host's default route
	log     *slog.Logger
	records records[lease]
	fw      *firewall
	reaper  *reaper
	busy    keylock.Lock // by pod id

	// hostMu is held while the host's side (bridge, table, sysctls) is made or
	// taken down. Nothing that lists waits for it.
	hostMu sync.Mutex
	host   *host // nil until the first pod, and after Purge

	mu     sync.Mutex
	pools  []*pool // those in force, IPv4 before IPv6
	leases map[string]lease
	ports  portTable
}

// lease is what a pod has of the bridge, and its record's content.
type lease struct {
	PodID     string       `json:"podID"`
	Name      string       `json:"name"`
	Namespace string       `json:"namespace"`
	Stage     stage        `json:"stage"`
	NetNS     string       `json:"netns"`
	Link      string       `json:"link"`
	IPs       []netip.Addr `json:"ips"`
	Ports     []hostPort   `json:"ports,omitempty"`
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

func newBridge(name string, mtu int, stateDir string, log *slog.Logger) *bridge {
	b := &bridge{
		name:    name,
		mtu:     mtu,
		log:     log,
		records: records[lease]{dir: stateDir},
		fw:      &firewall{bridge: name},
		leases:  map[string]lease{},
		ports:   portTable{},
	}
	b.reaper = newReaper(b.reap)
	return b
}

// start reads the records. The host's side is made when it is first needed.
func (b *bridge) start(subnets []netip.Prefix) error {
	if err := b.setSubnets(subnets); err != nil {
		return err
	}
	leases, err := b.records.load()
	if err != nil {
		return err
	}
	b.mu.Lock()
	for id, l := range leases {
		b.leases[id] = l
		b.takeLocked(l.IPs)
		if l.Stage == removing {
			continue
		}
		if err := b.ports.claim(id, l.Ports); err != nil {
			b.log.Warn("two records claim a host port", "pod", id, "error", err)
		}
	}
	b.mu.Unlock()
	b.reaper.start()
	for id, l := range leases {
		if l.Stage == removing {
			b.reaper.add(id)
		}
	}
	return nil
}

func (b *bridge) close() {
	b.reaper.close()
	b.fw.close()
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host != nil {
		b.host.links.close()
		b.host = nil
	}
}

// setSubnets puts other pod subnets in force; pods keep the addresses they have.
func (b *bridge) setSubnets(subnets []netip.Prefix) error {
	var pools []*pool
	for _, s := range subnets {
		p, err := newPool(s)
		if err != nil {
			return err
		}
		pools = append(pools, p)
	}
	// The first address is the pod's primary one.
	slices.SortStableFunc(pools, func(a, c *pool) int { return a.subnet.Addr().BitLen() - c.subnet.Addr().BitLen() })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pools = pools
	for _, l := range b.leases {
		b.takeLocked(l.IPs)
	}
	return nil
}

// changeSubnets is setSubnets while pods may be there.
func (b *bridge) changeSubnets(subnets []netip.Prefix) error {
	if slices.Equal(subnets, b.subnets()) {
		return nil
	}
	if err := b.setSubnets(subnets); err != nil {
		return err
	}
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host == nil {
		return nil
	}
	return b.dress(b.host)
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

// Setup implements Network.
func (b *bridge) Setup(ctx context.Context, p Pod) (Result, error) {
	if err := checkPodID(p.ID); err != nil {
		return Result{}, err
	}
	release, err := b.busy.Acquire(ctx, p.ID)
	if err != nil {
		return Result{}, err
	}
	defer release()
	if l, ok := b.lease(p.ID); ok {
		if l.Stage == connected && l.NetNS == p.NetNS {
			return Result{IPs: l.IPs}, nil
		}
		// A crash left it half made or half taken down: begin anew.
		if err := b.undo(ctx, l); err != nil {
			return Result{}, err
		}
	}
	ports, err := hostPorts(p.Ports)
	if err != nil {
		return Result{}, fmt.Errorf("network of pod %s: %w", p.ID, err)
	}
	ns, err := openNetns(p.NetNS)
	if err != nil {
		return Result{}, fmt.Errorf("network of pod %s: %w", p.ID, err)
	}
	defer ns.Close()
	h, err := b.ensureHost()
	if err != nil {
		return Result{}, err
	}
	l, err := b.reserve(p, ports)
	if err != nil {
		return Result{}, fmt.Errorf("network of pod %s: %w", p.ID, err)
	}
	if err := b.connect(ctx, h, ns, l); err != nil {
		err = fmt.Errorf("network of pod %s: %w", p.ID, err)
		return Result{}, errors.Join(err, b.undo(ctx, l))
	}
	return Result{IPs: l.IPs}, nil
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ports.claim(p.ID, ports); err != nil {
		return lease{}, err
	}
	v6 := hasIPv6()
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

func (b *bridge) connect(ctx context.Context, h *host, ns *os.File, l lease) error {
	if err := b.records.write(l.PodID, l); err != nil {
		return err
	}
	if err := fault.At(ctx, "network.setup.recorded"); err != nil {
		return err
	}
	addresses := b.addresses(l)
	v := veth{name: l.Link, master: h.index, mtu: h.mtu, mac: macOf(l.IPs[0]), netns: int(ns.Fd())}
	if err := v.create(h.links); err != nil {
		return err
	}
	if err := fault.At(ctx, "network.setup.linked"); err != nil {
		return err
	}
	if err := configure(ns, addresses); err != nil {
		return err
	}
	if err := fault.At(ctx, "network.setup.addressed"); err != nil {
		return err
	}
	if err := b.openPorts(l); err != nil {
		return err
	}
	if err := fault.At(ctx, "network.setup.mapped"); err != nil {
		return err
	}
	return b.advance(l, connected)
}

// addresses adds to a lease's addresses what the pod must know of their subnets.
func (b *bridge) addresses(l lease) []podAddress {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []podAddress
	for _, ip := range l.IPs {
		for _, p := range b.pools {
			if p.subnet.Contains(ip) {
				all = append(all, podAddress{ip: ip, bits: p.subnet.Bits(), gateway: p.gateway()})
			}
		}
	}
	return all
}

// openPorts sends the pod's host ports to it. UDP flows have no end that the kernel
// could see: those to the port's last owner are forgotten, or they would go on.
func (b *bridge) openPorts(l lease) error {
	if err := b.fw.addPorts(l.entries()); err != nil {
		return err
	}
	return forgetFlows(l.Ports)
}

// advance records the pod's next stage.
func (b *bridge) advance(l lease, s stage) error {
	l.Stage = s
	if err := b.records.write(l.PodID, l); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases[l.PodID] = l
	return nil
}

// Teardown implements Network. When it has returned, the pod's host ports are free
// and closed; its addresses follow when its link is gone.
func (b *bridge) Teardown(ctx context.Context, p Pod) error {
	if err := checkPodID(p.ID); err != nil {
		return err
	}
	release, err := b.busy.Acquire(ctx, p.ID)
	if err != nil {
		return err
	}
	defer release()
	l, ok := b.lease(p.ID)
	if !ok || l.Stage == removing {
		return nil
	}
	if err := b.retire(ctx, l); err != nil {
		return fmt.Errorf("network of pod %s: %w", p.ID, err)
	}
	b.reaper.add(p.ID)
	return nil
}

// retire marks a lease as going and closes its host ports.
func (b *bridge) retire(ctx context.Context, l lease) error {
	if err := b.advance(l, removing); err != nil {
		return err
	}
	if err := fault.At(ctx, "network.teardown.recorded"); err != nil {
		return err
	}
	if err := b.fw.removePorts(l.entries()); err != nil {
		return err
	}
	b.mu.Lock()
	b.ports.release(l.PodID, l.Ports)
	b.mu.Unlock()
	return fault.At(ctx, "network.teardown.unmapped")
}

// undo takes down at once what there is of a lease. The caller holds the pod.
func (b *bridge) undo(ctx context.Context, l lease) error {
	if err := b.retire(context.WithoutCancel(ctx), l); err != nil {
		return err
	}
	return b.reap([]string{l.PodID})
}

// Ready implements Network.
func (b *bridge) Ready(context.Context) error { return nil }

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
