// Package rules keeps the kernel's rules for Services: one nftables table, whose maps say where
// packets to the addresses of Services go.
//
// The caller says what is wanted (Port), the package finds the elements that differ and sends these
// in one transaction. It reads the kernel's state only when it starts and when someone else changed
// the table. The table outlives the process, so a restart interrupts nothing; Remove deletes it.
//
// Words: a Port is one port of one Service in one address family. Its frontends are the addresses
// and ports that clients use. Its backends are lists of endpoints; each has a number in the kernel.
// The rules choose the backend by the frontend, and one endpoint of the backend at random.
//
// The big maps hold data and never verdicts: the kernel validates all of a verdict map on each
// change. See layout.go for the table, and values.go for what its maps hold.
package rules

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// MaxEndpoints is how many endpoints of a backend get connections. Twelve bits of a mark say what
// to do.
const MaxEndpoints = 1022

// Config is what the table depends on besides Services.
type Config struct {
	// Name of the table.
	Name string
	// Ranges are the networks of Services' addresses. What goes to an address in them that no
	// Service has is rejected, unless the node itself has the address.
	Ranges []netip.Prefix
	// NodeIPs are the node's addresses, at most one of each family counts: connections that must
	// come back through the node get it as their source.
	NodeIPs []netip.Addr
	// PodRanges are networks of this node's pods, for those that Change.Pods does not name.
	PodRanges []netip.Prefix
	// Log tells of repairs; nil discards it.
	Log *slog.Logger
}

// Key names a Port, such as "default/web:http/4".
type Key string

// Port is one port of a Service in one address family.
type Port struct {
	// Protocol is unix.IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP.
	Protocol byte
	IPv6     bool
	Backends []Backend
	// Frontends of which another Port has the address and port already wait until that one gives
	// them up.
	Frontends []Frontend
}

// Backend is a list of endpoints.
type Backend struct {
	// Endpoints beyond MaxEndpoints get no connections.
	Endpoints []netip.AddrPort
	// Affinity is how long a client keeps its endpoint; 0: not at all.
	Affinity time.Duration
	// Drop has packets dropped when there is no endpoint. Otherwise they are rejected.
	Drop bool
}

// Frontend is where clients connect to.
type Frontend struct {
	// Addr is the zero Addr for a port of the node, on all of its addresses but loopback.
	Addr netip.Addr
	Port uint16
	// Backend and Inside are indices of Port.Backends. Inside is for this node and its pods.
	Backend, Inside int
	// Masquerade gives connections the node's address as source, so that replies come back through
	// it.
	Masquerade bool
	// Limited has packets dropped whose source is not in Sources.
	Limited bool
	Sources []netip.Prefix
}

// Pods are addresses of the node's own pods.
type Pods map[netip.Addr]bool

// Table is the table in the kernel. Its methods are for one goroutine, except Changed.
type Table struct {
	Config
	table   *nftable.Table
	ports   map[Key]*port
	owners  map[address]Key
	waiting map[address][]Key // owners hold the address
	pods    Pods
	numbers numbers
	kinds   *kinds
	staged  map[Key]*Port // whose endpoints Stage has sent; nil before it and after Apply
	adopted adopted

	noLabels bool // of connections: see choice.go
}

// Open reads what the kernel has of the table. The first Apply corrects it. The caller must Close
// the Table.
func Open(config Config) (*Table, error) {
	config.Log = cmp.Or(config.Log, slog.New(slog.DiscardHandler))
	t := &Table{
		Config: config, ports: map[Key]*port{}, owners: map[address]Key{}, waiting: map[address][]Key{},
		pods: Pods{}, numbers: newNumbers(), kinds: newKinds(),
	}
	var err error
	if t.table, err = nftable.Open(config.Name, layout{t}, config.Log); err != nil {
		return nil, err
	}
	t.adopt(t.table.Found())
	return t, nil
}

// Close ends the watch. The table stays in the kernel.
func (t *Table) Close() error { return t.table.Close() }

// Refuse makes a table that refuses connections to all addresses of Services, unless there is one:
// a connection that starts without rules does not follow them later, but is lost slowly. It is for
// the time until Services are known.
func (t *Table) Refuse() error {
	if t.table.Exists() {
		return nil
	}
	return t.table.Replace()
}

// Changed gets a value when someone else changed the table. The caller then calls Repair.
func (t *Table) Changed() <-chan struct{} { return t.table.Changed() }

// Change is a difference to what was wanted before.
type Change struct {
	// Ports has nil for those that are gone.
	Ports map[Key]*Port
	// Pods has false for those that are gone.
	Pods Pods
}

// Apply puts a change in force, in one transaction. If that fails, the change is kept, and the next
// Apply or Repair puts it in force.
func (t *Table) Apply(ctx context.Context, change Change) error {
	b := &batch{Batch: t.table.Batch()}
	keys := slices.Sorted(maps.Keys(change.Ports)) // so that the owner of a disputed address does not vary
	var freed []address
	for _, k := range keys {
		freed = append(freed, t.retract(b, k)...)
	}
	for _, k := range keys {
		want := change.Ports[k]
		switch staged := t.staged[k]; {
		case staged == nil:
			t.update(b, k, want)
		case staged != want:
			t.unstage()
			t.update(b, k, want)
		}
	}
	for _, k := range keys {
		t.emit(b, k)
	}
	for _, a := range freed {
		t.inherit(b, a)
	}
	for a, here := range change.Pods {
		t.setPod(b, a, here)
	}
	t.freeKinds(b)
	if err := t.table.Apply(ctx, b.Batch); err != nil {
		return err
	}
	t.adopted = adopted{}
	t.staged = nil
	return nil
}

// Repair compares the kernel's table with what is wanted, corrects it, and reports whether that had
// to be.
func (t *Table) Repair(ctx context.Context) (differed bool, err error) { return t.table.Repair(ctx) }

// Remove deletes the table of that name. It is no error if there is none.
func Remove(name string) error { return nftable.Remove(name) }

// widest keeps of some networks those that no other contains: the kernel refuses overlapping
// elements.
func widest(networks []netip.Prefix) []netip.Prefix {
	sorted := slices.Clone(networks)
	for i, p := range sorted {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int { return cmp.Compare(a.Bits(), b.Bits()) })
	var kept []netip.Prefix
	for _, p := range sorted {
		if !slices.ContainsFunc(kept, func(k netip.Prefix) bool { return k.Contains(p.Addr()) }) {
			kept = append(kept, p)
		}
	}
	return kept
}
