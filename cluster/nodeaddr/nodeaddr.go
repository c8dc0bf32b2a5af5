// Package nodeaddr gives the node addresses that only the node and its pods can reach: those of the
// cluster's DNS and of the API server in the Services' network.
//
// An address is on lo, with host scope, so that the node never uses it to talk to others. Pods are
// routed, so their packets to it arrive at the node. Packets that come in by an uplink are dropped:
// an uplink is a network card, or an interface with a default route. The drop rule is in the kernel
// before the address, and follows the node's default routes.
//
// The rules go with the process, however it ends. The address of a killed process stays on lo, where
// nothing answers, until the next process takes it over. Before Linux 5.12 the rules stay, too.
package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
)

var (
	// ErrHeld says that another process holds the address.
	ErrHeld = errors.New("another process of this machine holds it: give this cluster another Service network")
	// ErrTaken says that another interface than lo has the address.
	ErrTaken = errors.New("another interface of this machine has it: remove it there, or choose another Service network")
)

// Hold gives the node the addresses, until release is called. ctx bounds this call only. All or none
// of the addresses are held; ErrHeld and ErrTaken tell why not.
func Hold(ctx context.Context, addrs []netip.Addr) (release func() error, err error) {
	if len(addrs) == 0 {
		return nil, errors.New("hold addresses: none is given")
	}
	h := &holder{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("hold address %s: %w", addrs[0], err), h.release())
		}
	}()
	// Changes of routes are subscribed to before routes are listed, so that none is missed.
	if h.changes, err = subscribe(); err != nil {
		return nil, err
	}
	if h.kernel, err = dialKernel(); err != nil {
		return nil, err
	}
	if err := h.kernel.checkFree(addrs); err != nil {
		return nil, err
	}
	uplinks, err := h.kernel.uplinks()
	if err != nil {
		return nil, err
	}
	if h.table, err = newTable(addrs, uplinks); err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := h.kernel.add(addr); err != nil {
			return nil, err
		}
		h.addrs = append(h.addrs, addr)
	}
	h.following.Go(h.follow)
	return sync.OnceValue(h.release), nil
}

// holder is what a call of Hold has made; pointers are nil until then.
type holder struct {
	changes *subscription
	kernel  *kernel
	table   *table
	addrs   []netip.Addr

	stopped   atomic.Bool
	following sync.WaitGroup
}

// release undoes what there is, the addresses first.
func (h *holder) release() error {
	var errs []error
	h.stopped.Store(true)
	if h.changes != nil {
		errs = append(errs, h.changes.Close())
	}
	h.following.Wait()
	for _, addr := range h.addrs {
		errs = append(errs, h.kernel.remove(addr))
	}
	if h.table != nil {
		errs = append(errs, h.table.remove())
	}
	if h.kernel != nil {
		errs = append(errs, h.kernel.Close())
	}
	return errors.Join(errs...)
}

// follow keeps the table's uplinks what they are, until the subscription is closed.
func (h *holder) follow() {
	const consequence = "cannot follow the node's default routes: its addresses for pods may be reachable by new uplinks"
	for {
		if err := h.changes.wait(); err != nil {
			if !h.stopped.Load() {
				slog.Error(consequence, "addresses", h.addrs, "err", err)
			}
			return
		}
		uplinks, err := h.kernel.uplinks()
		if err == nil {
			err = h.table.setUplinks(uplinks)
		}
		if err != nil && !h.stopped.Load() {
			slog.Error(consequence, "addresses", h.addrs, "err", err)
		}
	}
}
