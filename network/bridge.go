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

func newBridge(name string, mtu int, stateDir string, log *slog.Logger) *bridge {
	b := &bridge{
		name:    name,
		mtu:     mtu,
		log:     log,
		records: newRecords[lease](stateDir, "bridge", log),
		fw:      &firewall{bridge: name},
		leases:  map[string]lease{},
		ports:   portTable{},
	}
	b.reaper = newReaper(log, b.reapOne)
	return b
}

// start takes over the state in the records. The host's side is set up when it is first needed.
func (b *bridge) start(subnets []netip.Prefix, all loaded[lease]) error {
	if err := b.setSubnets(subnets); err != nil {
		return err
	}
	b.records.tidy(all.left)
	for _, l := range all.records {
		b.take(l)
	}
	if err := b.replaceDamaged(all); err != nil {
		return err
	}
	for id, l := range all.records {
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
	for attempt := 0; ; attempt++ {
		h, err := b.ensureHost()
		if err != nil {
			return Result{}, err
		}
		l, err := b.reserve(p, ports)
		if err != nil {
			return Result{}, fmt.Errorf("network of pod %s: %w", p.ID, err)
		}
		l, err = b.connect(ctx, h, ns, p, l)
		if err == nil {
			return Result{IPs: l.IPs}, nil
		}
		err = errors.Join(fmt.Errorf("network of pod %s: %w", p.ID, err), b.undo(ctx, l))
		// Once more if somebody has deleted the bridge or flushed all rules.
		if attempt > 0 || !b.mendHost(h) {
			return Result{}, err
		}
	}
}

// connect does what Setup is for, and returns the lease as it is then.
func (b *bridge) connect(ctx context.Context, h *host, ns *os.File, p Pod, l lease) (lease, error) {
	if err := b.records.write(l.PodID, l); err != nil {
		return l, err
	}
	if err := faultSetupRecorded.At(ctx); err != nil {
		return l, err
	}
	addresses := b.addresses(l)
	v := veth{name: l.Link, master: h.index, group: linkGroup(b.name), mtu: h.mtu, mac: macOf(l.IPs[0]), netns: int(ns.Fd())}
	if err := v.create(ctx, h.links); err != nil {
		return l, err
	}
	if err := faultSetupLinked.At(ctx); err != nil {
		return l, err
	}
	given, err := configure(ns, addresses, p.Sysctls)
	if err != nil {
		return l, err
	}
	l = b.keepOnly(l, given)
	if err := faultSetupAddressed.At(ctx); err != nil {
		return l, err
	}
	if err := b.openPorts(l); err != nil {
		return l, err
	}
	if err := faultSetupMapped.At(ctx); err != nil {
		return l, err
	}
	l.Stage = connected
	return l, b.save(l)
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
	if !ok || l.retired {
		return nil
	}
	// A lease that is removing but not retired is one whose Teardown failed half way.
	if err := b.retire(ctx, l); err != nil {
		return fmt.Errorf("network of pod %s: %w", p.ID, err)
	}
	b.reaper.add(p.ID)
	return nil
}

// retire marks a lease as going and closes its host ports.
func (b *bridge) retire(ctx context.Context, l lease) error {
	l.Stage = removing
	if err := ignoringFull(b.save(l)); err != nil {
		return err
	}
	if err := faultTeardownRecorded.At(ctx); err != nil {
		return err
	}
	if err := b.fw.removePorts(l.entries()); err != nil {
		return err
	}
	if err := faultTeardownUnmapped.At(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ports.release(l.PodID, l.Ports)
	l.retired = true
	b.leases[l.PodID] = l
	return nil
}

// undo takes down at once what there is of a lease. The caller holds the pod.
func (b *bridge) undo(ctx context.Context, l lease) error {
	if err := b.retire(context.WithoutCancel(ctx), l); err != nil {
		return err
	}
	return b.finish(context.WithoutCancel(ctx), l)
}

// Ready implements Network.
func (b *bridge) Ready(context.Context) error { return nil }
