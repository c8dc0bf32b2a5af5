package nodeaddr

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// MostInternalIPs is how many InternalIPs are taken of a node: each costs the kernel of all other
// nodes a lookup, and rules.
const MostInternalIPs = 16

// InternalIPs returns the addresses of a Node object by which other machines reach the node, each
// once, in the order of the object. The kubelet of that node writes them, so they may be anything.
// The error is about the first one that is left out: those that pass CheckInternalIP are returned,
// MostInternalIPs at most.
func InternalIPs(node *corev1.Node) (all []netip.Addr, err error) {
	count := 0
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		count++
		addr, bad := netip.ParseAddr(a.Address)
		if bad != nil {
			bad = fmt.Errorf("its InternalIP %.100q is no address", a.Address)
		} else {
			bad = CheckInternalIP(addr)
		}
		switch {
		case bad != nil && err == nil:
			err = bad
		case bad == nil && len(all) < MostInternalIPs && !slices.Contains(all, addr):
			all = append(all, addr)
		}
	}
	if err == nil && count > MostInternalIPs {
		err = fmt.Errorf("it has %d InternalIPs, and %d are taken of a node at most", count, MostInternalIPs)
	}
	return all, err
}

// CheckInternalIP returns an error for an address by which no other machine reaches a node.
func CheckInternalIP(a netip.Addr) error {
	if a.Zone() != "" { // which may be any text, of any length
		return fmt.Errorf("its address %s, with zone %.20q, is none by which another machine reaches it", a.WithZone(""), a.Zone())
	}
	switch {
	case !a.IsValid(), a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast(), a.Is4In6(),
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("its address %s is none by which another machine reaches it", a)
	}
	return nil
}
