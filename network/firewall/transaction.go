package firewall

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
)

const (
	// answerLimit bounds how long the kernel is waited for. The library waits for one answer per
	// message, also where the kernel answers the whole transaction once, as without nf_tables. Other
	// programs' transactions come first, so it is long.
	answerLimit = time.Minute
	// A transaction is sent in one message, and all of its answers come before the first is read. With
	// thousands of pods they take more than sockets usually hold.
	sendBuffer, receiveBuffer = 16 << 20, 32 << 20
	// listLimit is a little less than an attribute can hold, with all elements of a list (struct
	// nlattr): the library does not notice if they are more.
	listLimit = 60 << 10
)

// open opens a connection that is used once, for a list.
func open() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetDeadline(time.Now().Add(answerLimit)) }))
}

// transaction sends what build adds as one; build may also ask. The socket is kept: when one is
// closed the kernel first waits for whatever it has still to free, 10 ms here (6.18).
func (f *Table) transaction(build func(*nftables.Conn) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.openLocked()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	if err = f.socket.SetDeadline(time.Now().Add(answerLimit)); err == nil {
		err = build(f.conn)
	}
	if err == nil {
		err = f.conn.Flush()
	}
	if err != nil {
		f.closeLocked() // with what is queued, or was not read
		return fmt.Errorf("nftables table %s: %w", f.name, err)
	}
	return nil
}

func (f *Table) openLocked() error {
	if f.conn != nil {
		return nil
	}
	var socket *netlink.Conn
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(s *netlink.Conn) error {
		socket = s
		if err := s.SetWriteBuffer(sendBuffer); err != nil {
			return err
		}
		return s.SetReadBuffer(receiveBuffer)
	}))
	if err != nil {
		return err
	}
	f.conn, f.socket = c, socket
	if err := f.ignoreOwnLocked(); err != nil {
		f.closeLocked()
		return err
	}
	return nil
}

// Close closes the socket. The table stays in the kernel.
func (f *Table) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeLocked()
}

func (f *Table) closeLocked() {
	if f.conn != nil {
		_ = f.conn.CloseLasting()
		f.conn, f.socket = nil, nil
	}
}

// setOp is a call of the library that adds elements to a set, or removes them.
type setOp func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error

// addSet adds a set with its elements to a transaction.
func addSet(c *nftables.Conn, s *nftables.Set, elements []nftables.SetElement) error {
	if err := c.AddSet(s, nil); err != nil {
		return fmt.Errorf("set %s: %w", s.Name, err)
	}
	return inLists(c, s, elements, (*nftables.Conn).SetAddElements)
}

// inLists has op add messages to a transaction for all elements, each with as many as it can hold.
// The two elements of an interval stay together.
func inLists(c *nftables.Conn, s *nftables.Set, elements []nftables.SetElement, op setOp) error {
	for len(elements) > 0 {
		end, size := 0, 0
		for end < len(elements) && size+elementSize(elements[end]) <= listLimit {
			size += elementSize(elements[end])
			end++
		}
		for end < len(elements) && elements[end].IntervalEnd {
			end--
		}
		if err := op(c, s, slices.Clip(elements[:end])); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
		elements = elements[end:]
	}
	return nil
}

// elementSize is at least what an element takes in a list: three nested attributes, each of a key
// or a value, and one for flags.
func elementSize(e nftables.SetElement) int { return 40 + len(e.Key) + len(e.Val) }
