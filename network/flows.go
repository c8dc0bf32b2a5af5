package network

import (
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
// through Services or host ports. While it has one of a connection that was reset (10 s) or was not
// closed properly (up to five days), the kernel sends a new connection from the same port to the
// same address: to no pod, or to the next one that has it. Pods that go together have one walk of
// the table. An error is logged: it must not keep the addresses.
func (b *builtin) forgetConnections(pod lease) {
	if err := b.forgotten.Do(pod.IPs); err != nil {
		b.log.Warn("connections to a pod that is gone are still tracked", "pod", pod.PodID, "err", err)
	}
}

// forgetAll is forgetConnections of the addresses of pods.
func forgetAll(pods [][]netip.Addr) error {
	addresses := slices.Concat(pods...)
	return forget(func(t *conntrack.Tracker, f func(*conntrack.Entry) bool) error {
		return t.ListTo(addresses, f)
	})
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
