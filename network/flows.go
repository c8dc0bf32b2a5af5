package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/conntrack"
)

// forgetFlows deletes the connection tracker's entries of UDP flows to host ports,
// which would keep going where they went before.
func forgetFlows(ports []hostPort) error {
	ports = slices.DeleteFunc(slices.Clone(ports), func(p hostPort) bool { return p.Protocol != "udp" })
	if len(ports) == 0 {
		return nil
	}
	return forget(func(t *conntrack.Tracker, f func(*conntrack.Entry) bool) error {
		return t.List(func(e *conntrack.Entry) bool {
			ours := e.Original.Protocol == unix.IPPROTO_UDP &&
				slices.ContainsFunc(ports, func(p hostPort) bool { return p.Port == e.Original.Destination.Port() })
			return !ours || f(e)
		})
	})
}

// forgetConnections deletes the connection tracker's entries of what went to a pod that is gone,
// directly, or through Services or host ports. While it has one of a connection that was reset
// (10 s) or was not closed properly (up to five days), the kernel sends a new connection from the
// same port to the same address: to no pod, or to the next one that has it. An error is logged: it
// must not keep the addresses.
func (b *builtin) forgetConnections(pod lease) {
	if err := b.forgotten.Do(pod); err != nil {
		b.log.Warn("connections to a pod that is gone are still tracked", "pod", pod.PodID, "err", err)
	}
}

// forgetAll is forgetConnections of pods that go together. They share one walk of the kernel's
// table. Pods that had no connections need none: it keeps a CPU from all else for 10 ms.
func (b *builtin) forgetAll(pods []lease) error {
	var links []string
	for _, p := range pods {
		links = append(links, p.Link)
	}
	reached, err := b.fw.Reached(links)
	var addresses []netip.Addr
	for _, p := range pods {
		// All may have had some if that cannot be told: the table is still to be made, or was deleted. Of
		// pods on a bridge it is never noted.
		if err != nil || !p.Routed || slices.Contains(reached, p.Link) {
			addresses = append(addresses, p.IPs...)
		}
	}
	if len(addresses) == 0 {
		return nil
	}
	err = forget(func(t *conntrack.Tracker, f func(*conntrack.Entry) bool) error { return t.ListTo(addresses, f) })
	return errors.Join(err, b.fw.DropReached(reached))
}

// forget deletes the entries that list finds. The kernel walks its whole table for that, which
// takes 10 ms even if hardly any are tracked.
func forget(list func(*conntrack.Tracker, func(*conntrack.Entry) bool) error) error {
	if n, err := conntrack.Count(); err == nil && n == 0 {
		return nil
	}
	t, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer t.Close()
	var failed error
	if err := list(t, func(e *conntrack.Entry) bool {
		_, failed = t.Delete(e)
		return failed == nil
	}); err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	if failed != nil {
		return fmt.Errorf("forget connections: %w", failed)
	}
	return nil
}
