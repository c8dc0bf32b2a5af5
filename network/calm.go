package network

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
)

// calm keeps a pod's end, before it is up, from IPv6's search for duplicates and routers: a bridge sends
// what is for several to every pod on it, so that each start would be work for all of them.
//
// A pod without an IPv6 address of ours gets no link-local one either. In another nobody has the
// addresses that come from its hardware address, which is ours alone, and routers are not listened
// to: any pod may call itself one (CAP_NET_RAW), and would get its neighbours' traffic (CVE-2020-10749).
func calm(ns *os.File, h *netlink.Handle, link netlink.Link, addresses []podAddress) error {
	if !slices.ContainsFunc(addresses, func(a podAddress) bool { return a.ip.Is6() }) {
		err := h.LinkSetIP6AddrGenMode(link, nl.IN6_ADDR_GEN_MODE_NONE)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // no IPv6 on such a link, be it for its MTU
			return fmt.Errorf("switch off link-local addresses in the pod: %w", err)
		}
		return nil
	}
	return ownthread.Run(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the pod's network namespace: %w", err)
		}
		for _, name := range []string{"accept_dad", "accept_ra"} {
			err := replaceSysctl("ipv6/conf/"+podIf+"/"+name, "1", "0")
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EROFS) { // of a daemon in a container
				return fmt.Errorf("in the pod: %w", err)
			}
		}
		return nil
	})
}
