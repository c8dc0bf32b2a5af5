package policy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// Connections that policies forbid, and those of pods that are gone, are ended by passes over the
// kernel's table of connections. A pass takes as long as that table is large, so it runs in a
// goroutine of its own, one at a time, and pods start meanwhile. A pass deals with all that is due
// when it starts; what comes due while it runs is left to the next one. Each connection is decided
// by the rules of the moment at which it would be ended.
//
// A pass starts at once, or after a rest as long as the last one took: at most half of a core is
// spent on it. So a connection ends within three passes of its policy, and one pass takes some
// 0.2 s with 100,000 connections.

const (
	// cutLimit bounds a pass.
	cutLimit = time.Minute
	// cutRest is the shortest rest after a pass.
	cutRest = 50 * time.Millisecond
)

// cutter ends the connections of some addresses that the rules forbid, and all of others: see
// rules.Cutter. It is called once.
type cutter func(ctx context.Context, forbidden, gone map[netip.Addr]bool) (cut int, err error)

// kernelTable is a *rules.Table as this package uses it.
type kernelTable struct{ *rules.Table }

func (t kernelTable) Cutter() (cutter, error) {
	c, err := t.Table.Cutter()
	if err != nil {
		return nil, err
	}
	return c.Cut, nil
}

// cuts are the connections to end. They belong to the keeper's loop.
type cuts struct {
	log             *slog.Logger
	forbidden, gone map[netip.Addr]bool // addresses that are due
	waiting         []waiter            // for those of gone that they have
	goneAt          time.Time           // when the sweep of gone is due
	next            *time.Timer         // fires when a pass is to start
	notBefore       time.Time
	pass            *pass      // nil: none runs
	done            chan error // of the pass
	pause           time.Duration
	failed          error // of the last pass
}

// pass is one under way.
type pass struct {
	forbidden, gone map[netip.Addr]bool
	waiting         []waiter
	began           time.Time
	cancel          context.CancelFunc
}

func newCuts(log *slog.Logger) cuts {
	c := cuts{log: log, forbidden: map[netip.Addr]bool{}, gone: map[netip.Addr]bool{}, done: make(chan error, 1), pause: firstPause}
	c.next = time.NewTimer(0)
	c.next.Stop()
	return c
}

// add has connections ended soon.
func (c *cuts) add(forbidden, gone map[netip.Addr]bool) {
	if len(c.gone) == 0 {
		c.goneAt = time.Now().Add(gonePause)
	}
	maps.Copy(c.forbidden, forbidden)
	maps.Copy(c.gone, gone)
}

// claims says whether connections with an address, of a pod that is gone, are still to be ended.
func (c *cuts) claims(a netip.Addr) bool {
	return c.gone[a] || c.pass != nil && c.pass.gone[a]
}

// hold has w answered when the connections of the pods that had its addresses before are ended. It
// returns false if there are none.
func (c *cuts) hold(w waiter) bool {
	switch {
	case slices.ContainsFunc(w.addresses, func(a netip.Addr) bool { return c.gone[a] }):
		c.waiting = append(c.waiting, w)
	case slices.ContainsFunc(w.addresses, c.claims):
		c.pass.waiting = append(c.pass.waiting, w)
	default:
		return false
	}
	return true
}

// due is when the next pass is to start.
func (c *cuts) due() (at time.Time, exists bool) {
	switch {
	case c.pass != nil:
		return at, false
	case len(c.waiting) > 0 && c.failed == nil:
		return at, true // pods that start do not wait for the rest's end
	case len(c.forbidden) > 0 || len(c.waiting) > 0:
		return c.notBefore, true
	case len(c.gone) > 0:
		return later(c.goneAt, c.notBefore), true
	}
	return at, false
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// schedule sets the timer for the next pass.
func (c *cuts) schedule() {
	if at, exists := c.due(); exists {
		c.next.Reset(max(time.Until(at), 0))
	} else {
		c.next.Stop()
	}
}

// start starts a pass over a table's connections with all that is due.
func (c *cuts) start(ctx context.Context, t table) {
	cut, err := t.Cutter()
	if err != nil {
		c.finish(err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cutLimit)
	p := &pass{forbidden: c.forbidden, gone: c.gone, waiting: c.waiting, began: time.Now(), cancel: cancel}
	c.pass, c.forbidden, c.gone, c.waiting = p, map[netip.Addr]bool{}, map[netip.Addr]bool{}, nil
	go func() {
		n, err := cut(ctx, p.forbidden, p.gone)
		if n > 0 {
			c.log.Info("connections were ended, as policies forbid them or their pods are gone", "connections", n, "after",
				time.Since(p.began).Round(time.Millisecond))
		}
		c.done <- err
	}()
}

// finish is called with what a pass returned. What a pass that failed was to end is due again.
func (c *cuts) finish(err error) {
	if err != nil {
		err = fmt.Errorf("end connections that policies forbid: %w", err)
		c.log.Error("connections that network policies forbid may go on", "err", err, "again", c.pause)
	}
	if p := c.pass; p != nil {
		p.cancel()
		c.notBefore = time.Now().Add(max(cutRest, time.Since(p.began)))
		if err != nil {
			c.add(p.forbidden, p.gone)
		}
		answer(p.waiting, err)
		c.pass = nil
	} else { // it did not start
		answer(c.waiting, err)
		c.waiting = nil
	}
	c.failed = err
	if err != nil {
		c.notBefore = time.Now().Add(c.pause)
		c.pause = min(2*c.pause, longestWait)
	} else {
		c.pause = firstPause
	}
}

// stop ends the pass that runs; what it was to end is due again. The rules by which it decides are
// not kept any more. Pods that wait get the error.
func (c *cuts) stop(why error) {
	waiting := c.waiting
	c.waiting = nil
	if p := c.pass; p != nil {
		p.cancel()
		if err := <-c.done; err != nil {
			c.add(p.forbidden, p.gone)
		}
		waiting = append(waiting, p.waiting...)
		c.pass = nil
	}
	answer(waiting, why)
}

// forget drops all that is due: nothing is forbidden any more.
func (c *cuts) forget() {
	c.stop(nil)
	clear(c.forbidden)
	clear(c.gone)
	c.failed = nil
}
