// Package nodeaddr gives the node addresses that only the node and its pods can reach: those of the
// cluster's DNS and of the API server in the Services' network.
//
// An address is on lo, with host scope, so that the node never uses it to talk to others. Pods are
// routed, so their packets to it arrive at the node. Packets of others, such as neighbours on the
// LAN, containers of other engines and virtual machines behind a bridge, are dropped. A packet is a
// pod's if it came in by a link of coracled's pods, or if it has the address of a pod that the
// kubelet has told of (Pods) and came in where the route to that pod leads. The rules are in the
// kernel before the address.
//
// The rules go with the process, however it ends. The address of a killed process stays on lo,
// where nothing answers, until the next process takes it over; before Linux 5.12 the rules stay,
// too. `coracle down` removes both.
//
// InternalIPs returns the addresses by which other machines reach a node.
package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
)

var (
	// ErrHeld says that another process holds the address.
	ErrHeld = errors.New("another process of this machine holds it: give this cluster another Service network")
	// ErrTaken says that another interface than lo has the address.
	ErrTaken = errors.New("another interface of this machine has it: remove it there, or choose another Service network")
)

// Hold gives the node the addresses, until release is called. One that another program removes
// meanwhile is put back at once. Pods on coracled's links reach them, and those of pods, which may
// be nil. ctx bounds this call only. All or none of the addresses are
// held; ErrHeld and ErrTaken tell why not. log gets what is put back; it must not be nil.
func Hold(ctx context.Context, addrs []netip.Addr, pods *Pods, log *slog.Logger) (release func() error, err error) {
	if len(addrs) == 0 {
		return nil, errors.New("hold addresses: none is given")
	}
	if pods == nil {
		pods = NewPods(log)
	}
	h := &holder{pods: pods}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("hold address %s: %w", addrs[0], err), h.release())
		}
	}()
	if h.kernel, err = dialKernel(); err != nil {
		return nil, err
	}
	if err := h.kernel.checkFree(addrs); err != nil {
		return nil, err
	}
	if h.guard, err = pods.guard(addrs, h.kernel.lo); err != nil {
		return nil, err
	}
	if h.watch, err = newWatch(h.kernel, slices.Clone(addrs), log); err != nil {
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
	h.watch.start()
	return sync.OnceValue(h.release), nil
}

// holder is what a call of Hold has made; pointers are nil until then.
type holder struct {
	pods   *Pods
	kernel *kernel
	guard  *guard
	watch  *watch
	addrs  []netip.Addr
}

// release undoes what there is, the addresses first: the rules are there for as long as they are.
func (h *holder) release() error {
	var errs []error
	if h.watch != nil {
		errs = append(errs, h.watch.close())
	}
	for _, addr := range h.addrs {
		errs = append(errs, h.kernel.remove(addr))
	}
	if h.guard != nil {
		errs = append(errs, h.pods.leave(h.guard))
	}
	if h.kernel != nil {
		errs = append(errs, h.kernel.Close())
	}
	return errors.Join(errs...)
}
