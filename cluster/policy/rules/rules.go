package rules

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// Table is the table in the kernel. Its methods are for one goroutine, except Changed and Allowed.
type Table struct {
	Config
	table *nftable.Table

	// mu guards state, which only that goroutine changes, and others read.
	mu    sync.RWMutex
	state *State
}

// Open reads what the kernel has of the table, and makes none: the first Apply does, which must
// have all that is wanted. The caller must Close the Table.
func Open(config Config) (*Table, error) {
	config.Log = cmp.Or(config.Log, slog.New(slog.DiscardHandler))
	t := &Table{Config: config, state: NewState(config.PodRanges)}
	var err error
	if t.table, err = nftable.Open(config.Name, layout{t}, config.Log); err != nil {
		return nil, err
	}
	return t, nil
}

// Close ends the watch. The table stays in the kernel.
func (t *Table) Close() error { return t.table.Close() }

// Adopted are the idents and pods that the kernel's table had at Open. A first Apply that uses the
// same numbers changes little. It is empty after that.
func (t *Table) Adopted() (idents map[netip.Addr]uint32, pods map[netip.Addr]Pod) {
	idents, pods = map[netip.Addr]uint32{}, map[netip.Addr]Pod{}
	found := t.table.Found()
	if found == nil {
		return idents, pods
	}
	for place, value := range found.Elements {
		a, _ := netip.AddrFromSlice([]byte(place.Key))
		for _, f := range families {
			p := pods[a]
			switch place.Set {
			case f.setID(setIdent):
				idents[a] = nftable.FromNative(value)
			case f.setID(setPods + int(Ingress)):
				p.Ingress = nftable.FromNative(value)
				pods[a] = p
			case f.setID(setPods + int(Egress)):
				p.Egress = nftable.FromNative(value)
				pods[a] = p
			}
		}
	}
	return idents, pods
}

// AdoptedLinkGroup is the group of links that the kernel's table had at Open, as Adopted says of
// others.
func (t *Table) AdoptedLinkGroup() (group uint32, exists bool) {
	if found := t.table.Found(); found != nil {
		for place := range found.Elements {
			if place.Set == setLinks {
				return nftable.FromNative(place.Key), true
			}
		}
	}
	return 0, false
}

// Changed gets a value when someone else changed the table. The caller then calls Repair.
func (t *Table) Changed() <-chan struct{} { return t.table.Changed() }

// Apply puts a change in force, in one transaction. If the kernel refuses that, the change is kept,
// and the next Apply or Repair puts it in force. A change that no table could hold is refused as a
// whole, before.
func (t *Table) Apply(ctx context.Context, change Change) error {
	b := t.table.Batch()
	t.mu.Lock()
	err := t.state.apply(b, change)
	t.mu.Unlock()
	if err != nil {
		return err
	}
	return t.table.Apply(ctx, b)
}

// Repair compares the kernel's table with what is wanted, corrects it, and reports whether that had
// to be.
func (t *Table) Repair(ctx context.Context) (differed bool, err error) { return t.table.Repair(ctx) }

// Allowed decides as the kernel's rules do. See State.Allowed.
func (t *Table) Allowed(c Connection) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.state.Allowed(c)
}

// Remove deletes the table of that name, and with it all isolation. It is no error if there is
// none.
func Remove(name string) error { return nftable.Remove(name) }
