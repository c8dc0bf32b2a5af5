package network

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"unicode/utf8"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// InterfaceUsage is what has gone through an interface, from the pod's side.
type InterfaceUsage struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// Usage reads the counters of all interfaces but loopback in the network namespace at
// path, the pod's own interface first; of very many only the first ones.
func Usage(path string) ([]InterfaceUsage, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("network usage: open namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("network usage: enter namespace %s: %w", path, err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // one that comes or goes counts or not
		return nil, fmt.Errorf("network usage: list links: %w", err)
	}
	return usageOf(links), nil
}

// maxInterfaces is how many interfaces are counted. A pod with NET_ADMIN may make any number, and
// what the kubelet asks for has to fit into one message for all pods.
const maxInterfaces = 64

// usageOf leaves out interfaces whose name is no text: the kernel takes any bytes from a pod, but
// a message with one such name could not be sent, and all other pods' use would be lost with it.
func usageOf(links []netlink.Link) []InterfaceUsage {
	var out []InterfaceUsage
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || a.Statistics == nil || !utf8.ValidString(a.Name) {
			continue
		}
		s := a.Statistics
		out = append(out, InterfaceUsage{
			Name:    a.Name,
			RxBytes: s.RxBytes, RxPackets: s.RxPackets, RxErrors: s.RxErrors, RxDropped: s.RxDropped,
			TxBytes: s.TxBytes, TxPackets: s.TxPackets, TxErrors: s.TxErrors, TxDropped: s.TxDropped,
		})
	}
	slices.SortStableFunc(out, func(a, b InterfaceUsage) int { return cmp.Compare(notDefault(a), notDefault(b)) })
	return out[:min(len(out), maxInterfaces)]
}

func notDefault(i InterfaceUsage) int {
	if i.Name == podIf {
		return 0
	}
	return 1
}
