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
	"time"

	"github.com/coracle-project/coracle/internal/batch"
	"github.com/coracle-project/coracle/internal/keylock"
	"github.com/coracle-project/coracle/internal/procsys"
	"github.com/coracle-project/coracle/network/firewall"
)

// builtin is the built-in network: a veth pair to each pod with routes and permanent neighbours on
// both sides, and nftables for what pods may send and get, for what leaves the host, and for host
// ports. No pod shares a link with another.
//
// A pod's link is removed with its network namespace, which takes the kernel some 50 ms; its
// addresses stay taken until then.
type builtin struct {
	name     string
	mtu      int            // 0: that of the host's default route
	allowed  []netip.Prefix // see Config.AllowFrom
	stateDir string
	log      *slog.Logger
	records  records[lease]
	fw       *firewall.Table
	holds    *holds
	reaper   *reaper
	changes  *changes
	// tableWatch restores fw's table.
	tableWatch *tableWatch
	sysctls    procsys.Instances
	linger     time.Duration // for which a link is left to go with its namespace
	busy       keylock.Lock  // by pod id
	forgotten  batch.Batches[lease]

	// hostMu is held while the host's side (addresses, table, sysctls) is made or
	// taken down. Nothing that lists waits for it.
	hostMu sync.Mutex
	host   *host          // nil until the first pod, and after Purge
	peers  []netip.Prefix // what the table has: see peers.go

	mu     sync.Mutex
	pools  []*pool // those in force, IPv4 before IPv6
	leases map[string]lease
	ports  portTable
}

func newBuiltin(c Config) *builtin {
	b := &builtin{
		name:     c.Name,
		mtu:      c.MTU,
		allowed:  c.AllowFrom,
		stateDir: c.StateDir,
		log:      c.Log,
		records:  newRecords[lease](c.StateDir, "bridge", c.Log),
		fw:       firewall.New(c.Name, linkGroup(c.Name)),
		holds:    newHolds(c.Log),
		leases:   map[string]lease{},
		ports:    portTable{},
		linger:   2 * time.Second,
	}
	b.forgotten.Work = b.forgetAll
	b.reaper = newReaper(c.Log, b.reapOne)
	b.tableWatch = newTableWatch(c.Log, b.restoreTable)
	b.changes = newChanges(c.Log, b.reaper.hurry, b.uplinksChanged, b.peersChanged)
	return b
}

// start takes over the state in the records. The host's side is set up when it is first needed.
func (b *builtin) start(subnets []netip.Prefix, all loaded[lease]) error {
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

func (b *builtin) close() {
	b.changes.close()
	b.tableWatch.close()
	b.reaper.close()
	b.fw.Close()
	b.holds.close()
	b.sysctls.Close()
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host != nil {
		b.host.links.close()
		b.host = nil
	}
}

// setSubnets puts other pod subnets in force; pods keep the addresses they have.
func (b *builtin) setSubnets(subnets []netip.Prefix) error {
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

// changeSubnets is setSubnets while pods may be there. After an error the subnets are those from
// before, so that another call tries again. What is missing of the host's side then, the next Setup
// restores.
func (b *builtin) changeSubnets(subnets []netip.Prefix) error {
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	before := b.subnets()
	if slices.Equal(subnets, before) {
		return nil
	}
	if err := b.setSubnets(subnets); err != nil {
		return err
	}
	if b.host == nil {
		return nil
	}
	err := b.redressLocked(func(*host) {})
	if err != nil {
		err = errors.Join(err, b.setSubnets(before))
	}
	return err
}

// redressLocked makes another host of the one that there is, because Setups go by what they have
// got.
func (b *builtin) redressLocked(change func(*host)) error {
	h := *b.host
	change(&h)
	if err := b.dress(&h); err != nil {
		return err
	}
	b.host = &h
	return nil
}

// Setup implements Network.
func (b *builtin) Setup(ctx context.Context, p Pod) (Result, error) {
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
		// A crash left it half made or half taken down: begin again.
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
		l, err := b.reserve(h, p, ports)
		if errors.Is(err, errOtherRanges) && attempt == 0 {
			continue // the host's side is just made for them
		}
		if err == nil {
			if err = b.hold(&l); err != nil {
				b.free(l)
			}
		}
		if err != nil {
			return Result{}, fmt.Errorf("network of pod %s: %w", p.ID, err)
		}
		l, err = b.connect(ctx, h, ns, p, l)
		if err == nil {
			return Result{IPs: l.IPs}, nil
		}
		undone := b.undo(ctx, l)
		err = errors.Join(fmt.Errorf("network of pod %s: %w", p.ID, err), undone)
		// Once more if someone has flushed all rules or addresses.
		if attempt > 0 || undone != nil || !b.repairHost(h) {
			return Result{}, err
		}
	}
}

// connect does what Setup is for, and returns the lease as it is then.
func (b *builtin) connect(ctx context.Context, h *host, ns *os.File, p Pod, l lease) (lease, error) {
	if err := b.records.write(l.PodID, l); err != nil {
		return l, err
	}
	if err := faultSetupRecorded.At(ctx); err != nil {
		return l, err
	}
	nlLink := b.linkOf(h, l, 0)
	if err := nlLink.create(ctx, h.links, int(ns.Fd())); err != nil {
		return l, err
	}
	if err := faultSetupLinked.At(ctx); err != nil {
		return l, err
	}
	pod, err := openPod(ns)
	if err != nil {
		return l, err
	}
	defer pod.Close()
	given, err := configure(pod, l.IPs, h.gateways)
	if err != nil {
		return l, err
	}
	if before := l; len(given) < len(before.IPs) {
		l = b.keepOnly(l, given)
		// If the table was made again meanwhile, it has what was given up.
		if err := b.fw.Drop(before.entry()); err != nil {
			return l, err
		}
	}
	if err := faultSetupAddressed.At(ctx); err != nil {
		return l, err
	}
	nlLink.ips = l.IPs
	if err := nlLink.connect(h.links.Handle, h.gateways); err != nil {
		return l, err
	}
	if err := nlLink.awaitUp(ctx, h.links.Handle); err != nil {
		return l, err
	}
	if err := h.bridge.answerFor(h, l.IPs); err != nil {
		return l, err
	}
	if err := faultSetupRouted.At(ctx); err != nil {
		return l, err
	}
	if err := b.admit(l); err != nil {
		return l, err
	}
	if err := awaitAddresses(ctx, pod, l.IPs); err != nil { // now: the worker has had time
		return l, err
	}
	if err := faultSetupMapped.At(ctx); err != nil {
		return l, err
	}
	l.Stage = connected
	return l, b.save(l)
}

// linkOf describes a pod's link. Its index is 0 if it is still to be made.
func (b *builtin) linkOf(h *host, l lease, index int) *link {
	return &link{name: l.Link, index: index, group: linkGroup(b.name), mtu: h.mtu, mac: l.mac(), ips: l.IPs}
}

// admit lets the pod send, and sends its host ports to it. UDP flows have no end that the kernel
// could see: those to the port's last owner are forgotten, or they would go on.
func (b *builtin) admit(l lease) error {
	if len(l.Ports) > 0 {
		if err := takeLoopback(l.Link); err != nil {
			return err
		}
	}
	if err := b.fw.Add(l.entry()); err != nil {
		return err
	}
	return forgetFlows(l.Ports)
}

// Teardown implements Network. When it has returned, the pod's host ports are free
// and closed; its addresses follow when its link is gone.
func (b *builtin) Teardown(ctx context.Context, p Pod) error {
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
	// Its namespace is about to end, and the link with it.
	b.reaper.addLater(p.ID, b.linger)
	if !b.changes.expect(l.Link, p.ID) {
		b.reaper.hurry(p.ID)
	}
	return nil
}

// retire marks a lease as going, closes its host ports, and lets the pod send no more.
func (b *builtin) retire(ctx context.Context, l lease) error {
	l.Stage = removing
	if err := ignoringFull(b.save(l)); err != nil {
		return err
	}
	if err := faultTeardownRecorded.At(ctx); err != nil {
		return err
	}
	if err := b.fw.Drop(l.entry()); err != nil {
		return err
	}
	// A client that goes on sending would not reach what listens on the port next.
	if err := forgetFlows(l.Ports); err != nil {
		b.log.Warn("UDP flows to a host port of a pod that is gone go on", "pod", l.PodID, "err", err)
	}
	if err := faultTeardownUnmapped.At(ctx); err != nil {
		return err
	}
	b.holds.release(l.PodID)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ports.release(l.PodID, l.Ports)
	l.retired = true
	b.leases[l.PodID] = l
	return nil
}

// undo takes down at once what there is of a lease. The caller holds the pod. Teardown takes a
// retired lease for done, so what is left of one that cannot be finished now is the reaper's.
func (b *builtin) undo(ctx context.Context, l lease) error {
	if err := b.retire(context.WithoutCancel(ctx), l); err != nil {
		return err
	}
	err := b.finish(context.WithoutCancel(ctx), l)
	if err != nil {
		b.reaper.add(l.PodID)
	}
	return err
}

// Ready implements Network.
func (b *builtin) Ready(context.Context) error { return nil }
