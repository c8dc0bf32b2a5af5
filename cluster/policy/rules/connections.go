package rules

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/conntrack"
)

// addressTries is how often the node's addresses are listed that change meanwhile.
const addressTries = 5

// Cutter deletes entries of the connection tracker, once. Any goroutine may use it, while that of
// the Table goes on.
type Cutter struct {
	table     *Table
	allowed   func(Connection) bool // called with the table's mu held
	addresses *rtnetlink.Handle
	tracker   *conntrack.Tracker
}

// Cutter opens what one Cut needs, in the network namespace of its thread.
func (t *Table) Cutter() (*Cutter, error) {
	addresses, err := rtnetlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open the node's addresses: %w", err)
	}
	tracker, err := conntrack.Open()
	if err != nil {
		addresses.Close()
		return nil, err
	}
	return &Cutter{table: t, allowed: t.state.Allowed, addresses: addresses, tracker: tracker}, nil
}

func (c *Cutter) close() {
	c.tracker.Close()
	c.addresses.Close()
}

// Cut deletes the entries of connections from or to one of the pods that the rules forbid, and all
// of those from or to an address that is gone, except connections with the node itself. Each is
// decided by the rules of that moment. The kernel must have them already, otherwise the next packet
// makes the entry again.
//
// The rules alone stop what the first end sends; the entry lets the other end's replies pass.
func (c *Cutter) Cut(ctx context.Context, pods, gone map[netip.Addr]bool) (cut int, err error) {
	defer c.close()
	defer context.AfterFunc(ctx, c.tracker.Close)() // ends waits for it
	local, err := c.localAddresses()
	if err != nil {
		return 0, fmt.Errorf("cut connections: list the node's addresses: %w", err)
	}
	var failed error
	err = c.tracker.List(func(e *conntrack.Entry) bool {
		f := Connection{Protocol: e.Original.Protocol, Source: e.Original.Source, Destination: e.Reply.Source}
		source, destination := f.Source.Addr(), f.Destination.Addr()
		ended := gone[source] || gone[destination]
		if !ended && !pods[source] && !pods[destination] || local[source] || local[destination] {
			return true
		}
		deleted, err := c.end(e, f, ended)
		if err != nil {
			failed = fmt.Errorf("cut connection from %s to %s: %w", f.Source, f.Destination, err)
		}
		if deleted {
			cut++
		}
		return ctx.Err() == nil
	})
	switch {
	case ctx.Err() != nil:
		return cut, fmt.Errorf("cut connections: %w", context.Cause(ctx))
	case err != nil:
		return cut, fmt.Errorf("cut connections: list the connection tracker's entries: %w", err)
	}
	return cut, failed
}

// end deletes an entry, unless the rules allow the connection and it is not to be deleted in any
// case. The rules do not change before it is deleted: the kernel answers this at once.
func (c *Cutter) end(e *conntrack.Entry, f Connection, inAnyCase bool) (deleted bool, err error) {
	c.table.mu.RLock()
	defer c.table.mu.RUnlock()
	if !inAnyCase && c.allowed(f) {
		return false, nil
	}
	return c.tracker.Delete(e)
}

func (c *Cutter) localAddresses() (map[netip.Addr]bool, error) {
	var all []rtnetlink.Addr
	var err error
	for range addressTries {
		if all, err = c.addresses.AddrList(nil, rtnetlink.FAMILY_ALL); !errors.Is(err, rtnetlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	local := map[netip.Addr]bool{}
	for _, each := range all {
		a, _ := netip.AddrFromSlice(each.IP)
		local[a.Unmap()] = true
	}
	return local, nil
}
