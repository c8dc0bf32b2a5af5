// Package announce has the kernel answer for addresses that this machine does not have itself, by
// ARP and by neighbour discovery (ND), so that other machines on the segment send it what is for
// them. What becomes of those packets is decided elsewhere, by the rules for Services.
//
// No packet of the network is read here. An address is announced by three things in the kernel:
//
//   - an entry in the interface's table of proxied neighbours ("ip neigh show proxy"): the kernel
//     answers for this address on this interface, and for no other;
//   - a route for it to the sink, a device that drops what it gets ("ip route show dev
//     coracle-lb6443"). The kernel only answers by ARP for what it routes to another interface. It
//     also keeps what no rule translates from leaving by the interface again. An nftables table
//     refuses such packets (refuse.go);
//   - sysctls: IPv6 entries are followed (proxy_ndp), and answers are not delayed by up to 0.8 s
//     (proxy_delay).
//
// The sink is a veth link whose other end stays down: every kernel that runs pods has that. Its
// alias says what the sysctls were before. Its routes and the entries' protocol say what is ours: a
// kernel before 5.0 keeps no protocol of entries. So the kernel's
// state is the only record: another process with the same sink takes it over, and Remove removes
// all of it. The kernel answers while no process runs. While one runs, it puts back what another
// program removes of it.
//
// When an address comes to this machine, or comes back, it is told to the segment (a gratuitous
// ARP, an unsolicited neighbour advertisement), three times a second apart: a switch or a neighbour
// may miss one.
package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// ErrNoInterface says that no interface's network has the address.
var ErrNoInterface = errors.New("no interface's network has it: name an interface with --load-balancer-interface, " +
	"or have a router send packets for it to this node")

const (
	// times is how often an address is announced to the segment, and apart the time between.
	times = 3
	apart = time.Second
	// again is the pause after a failure.
	again = 30 * time.Second
	// repairPause is the time between two looks at the kernel, in case another program removes what
	// is announced each time.
	repairPause = 100 * time.Millisecond
	// quiet is how long the log says nothing more of announcements that were lost.
	quiet = time.Minute
)

// Announcer announces addresses. The zero value is not usable.
type Announcer struct {
	sink  string
	named string
	log   *slog.Logger
	// report is told when what is known of an address changes: the interface that it is announced
	// on, or why it is not.
	report func(address netip.Addr, link string, err error)

	wake chan struct{}

	mu     sync.Mutex
	wanted map[netip.Addr]bool // guarded by mu; nil until Set was called

	// Run's.
	told    map[netip.Addr]told
	before  record         // as in the sink's alias, in case another program removes the sink
	refusal *nftable.Table // nil without one
	said    time.Time      // when the log said that announcements were lost
	// When the log said that the refusal could not be made, and that another program changed it;
	// and when it may be tried again.
	saidRefusal, saidRepaired, reopen time.Time
}

// told is what was last done for an address.
type told struct {
	link string
	mac  string
	err  string
	// The segment is to be told left times yet, the next time at due.
	left int
	due  time.Time
}

// New returns an announcer with a sink of that name. It announces on the named interface, or, for
// "", on the one whose network has the address. report is called by Run, and must not call Set.
func New(sink, named string, log *slog.Logger, report func(address netip.Addr, link string, err error)) *Announcer {
	return &Announcer{sink: sink, named: named, log: log, report: report, wake: make(chan struct{}, 1), told: map[netip.Addr]told{}}
}

// Set replaces the addresses to announce. Until it is called, those of an earlier process stay.
func (a *Announcer) Set(addresses []netip.Addr) {
	wanted := map[netip.Addr]bool{}
	for _, address := range addresses {
		wanted[address] = true
	}
	a.mu.Lock()
	same := a.wanted != nil && maps.Equal(a.wanted, wanted)
	a.wanted = wanted
	a.mu.Unlock()
	if !same {
		a.signal()
	}
}

func (a *Announcer) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run keeps the announcements until ctx ends. They stay in the kernel then.
func (a *Announcer) Run(ctx context.Context) error {
	changes, err := subscribe(a.log)
	if err != nil {
		return fmt.Errorf("announce addresses: %w", err)
	}
	var following sync.WaitGroup
	following.Go(func() {
		for {
			err := changes.wait()
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				a.log.Error("changes of interfaces are not followed: addresses of load balancers may not be announced on new ones", "err", err)
				return
			}
			a.signal()
		}
	})
	defer following.Wait()
	defer func() { _ = changes.Close() }()
	defer a.leaveRefusal()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
			// What came meanwhile may have changed interfaces, and with them the entries.
			timer.Reset(a.reconcile(ctx, changes))
		case <-timer.C:
			timer.Reset(a.reconcile(ctx, changes))
		case <-a.refusalChanged():
			a.repairRefusal(ctx)
		}
		select { // two programs that correct each other must not take a whole core
		case <-ctx.Done():
			return nil
		case <-time.After(repairPause):
		}
	}
}

// forever is the pause when nothing is to be done.
const forever = 1 << 62

// reconcile makes the kernel's state what is wanted, and returns when it is to be called again.
func (a *Announcer) reconcile(ctx context.Context, changes *subscription) time.Duration {
	a.mu.Lock()
	wanted := a.wanted
	a.mu.Unlock()
	if wanted == nil {
		return forever
	}
	state, err := readState(a.sink)
	if err != nil {
		a.log.Error("addresses of load balancers are not announced as they should", "err", err, "again", again)
		return again
	}
	for address := range a.told {
		if !wanted[address] {
			delete(a.told, address)
		}
	}
	state.recall(a.before)
	if len(wanted) == 0 {
		changes.hear(false, 0, nil)
		a.leaveRefusal()
		if err := state.remove(); err != nil {
			a.log.Error("addresses of load balancers are still announced", "err", err, "again", again)
			return again
		}
		a.before = nil
		return forever
	}
	lost := 0
	next := a.refuse(ctx)
	if err := state.withdraw(wanted); err != nil {
		a.log.Error("addresses are still announced that no Service has", "err", err, "again", again)
		next = min(next, again)
	}
	// Each change of an interface in use is heard. While one is missing, so is each of any.
	var used []int
	everywhere := true
	for address := range wanted {
		before, known := a.told[address]
		known = known && before.err == ""
		had := state.routes[address]
		l, came, err := state.announce(address, a.named, known)
		if err != nil {
			everywhere = false
			if !errors.Is(err, ErrNoInterface) {
				next = min(next, again)
			}
		} else {
			used = append(used, l.index)
			if known && before.link == l.name && (came || !had) {
				lost++
			}
		}
		next = min(next, a.tell(address, l, came, err))
	}
	a.before = state.before.clone()
	if lost += state.reset; lost > 0 && time.Since(a.said) > quiet {
		a.said = time.Now()
		a.log.Warn(
			"announcements of load balancers' addresses were lost, since another program changed interfaces, routes or sysctls: they are back",
			"sink", a.sink,
		)
	}
	if changes.hear(!everywhere, state.index(), used) {
		a.signal() // to look once more at what changed meanwhile
	}
	return next
}

// tell has the segment and the caller know of an address, and returns when the segment is to be
// told again.
func (a *Announcer) tell(address netip.Addr, l link, came bool, failed error) (next time.Duration) {
	before, known := a.told[address]
	now := told{link: l.name, mac: l.mac.String(), left: before.left, due: before.due}
	if failed != nil {
		now = told{err: failed.Error()}
	}
	if !known || before.link != now.link || before.err != now.err {
		a.report(address, now.link, failed)
	}
	if failed == nil && (came || !known || before.link != now.link || before.mac != now.mac) {
		now.left, now.due = times, time.Now()
	}
	if now.left > 0 && !time.Now().Before(now.due) {
		now.left--
		now.due = time.Now().Add(apart)
		if err := send(address, l); err != nil {
			a.log.Warn("the network is not told of a load balancer's address", "address", address, "interface", l.name, "err", err)
		}
	}
	a.told[address] = now
	if now.left == 0 {
		return forever
	}
	return time.Until(now.due)
}
