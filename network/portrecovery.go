package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// rehold binds the host ports of the claimed pods that an earlier daemon has connected. If a
// process of the node has taken one meanwhile, that one keeps its traffic, and the pod loses the
// port.
func (b *builtin) rehold(ctx context.Context, claimed map[string]bool) error {
	var errs []error
	for _, l := range b.connected() {
		if len(l.Ports) == 0 || !claimed[l.PodID] {
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, fmt.Errorf("hold host ports of pods: %w", context.Cause(ctx)))...)
		}
		errs = append(errs, b.reholdOne(ctx, l.PodID))
	}
	return errors.Join(errs...)
}

func (b *builtin) reholdOne(ctx context.Context, podID string) error {
	release, err := b.busy.Acquire(ctx, podID)
	if err != nil {
		return err
	}
	defer release()
	l, ok := b.lease(podID)
	if !ok || l.Stage != connected {
		return nil // it was torn down meanwhile
	}
	var kept, lost, held []hostPort
	for _, p := range l.Ports {
		now, err := b.holds.take(podID, l.IPs, p)
		if now {
			held = append(held, p)
		}
		// Where the earlier daemon held nothing, the process may have been there all the time.
		if errors.Is(err, ErrPortInUse) && slices.Contains(l.Held, p) && !mayBeClient(p) {
			b.log.Error("a pod has lost a host port: a process of the node took it while coracled was away", "pod", podID, "port", p.String(), "err",
				err)
			lost = append(lost, p)
			continue
		}
		kept = append(kept, p)
		if err != nil { // no descriptor, for example
			b.log.Warn("a pod keeps a host port that cannot be kept from programs of the node", "pod", podID, "port", p.String(), "err", err)
		}
	}
	unchanged := slices.Equal(held, l.Held)
	l.Held = held
	switch {
	case len(lost) > 0:
		return b.losePorts(l, kept, lost)
	case unchanged:
		return nil
	}
	return b.save(l)
}

// mayBeClient reports whether what has a port may be a client, which goes soon: the kernel gives
// such ports to sockets that ask for none, and an UDP socket that is not connected may be either.
func mayBeClient(p hostPort) bool {
	if p.Protocol != "udp" {
		return false
	}
	var low, high uint16
	span, err := readSysctl("ipv4/ip_local_port_range") // it is for IPv6, too
	if err == nil {
		_, err = fmt.Sscan(span, &low, &high)
	}
	return err != nil || low <= p.Port && p.Port <= high
}

// losePorts takes host ports from a connected pod.
func (b *builtin) losePorts(l lease, kept, lost []hostPort) error {
	without := l
	without.Ports = lost
	closed := without.entry()
	closed.IPs = nil // the pod may send as before
	l.Ports = kept
	if err := b.save(l); err != nil {
		return err
	}
	b.mu.Lock()
	b.ports.release(l.PodID, lost)
	b.mu.Unlock()
	return errors.Join(b.fw.Drop(closed), forgetFlows(lost))
}
