package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
	"github.com/coracle-project/coracle/internal/procsys"
)

// calm keeps a pod's end, before it is up, from IPv6's search for duplicates and routers: a bridge sends
// what is for several to every pod on it, so that each start would be work for all of them.
//
// Nobody else has the addresses that come from a hardware address that is ours alone. And routers are not
// listened to: any pod may call itself one (CAP_NET_RAW), and would get its neighbours' traffic
// (CVE-2020-10749), in a pod with IPv4 addresses alone, too. That one gets no link-local address either.
func calm(ns *os.File, h *netlink.Handle, link netlink.Link, addresses []podAddress, sysctls map[string]string) error {
	err := ownthread.Run(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the pod's network namespace: %w", err)
		}
		return procsys.Use(func(dir string) error { return calmHere(dir, sysctls) })
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) { // no IPv6 on such a link, be it for its MTU
		return err
	}
	if slices.ContainsFunc(addresses, func(a podAddress) bool { return a.ip.Is6() }) {
		return nil
	}
	err = h.LinkSetIP6AddrGenMode(link, nl.IN6_ADDR_GEN_MODE_NONE)
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // the same
		return fmt.Errorf("switch off link-local addresses in the pod: %w", err)
	}
	return nil
}

// calmHere sets what sysctls do not choose otherwise, in the thread's network namespace.
func calmHere(procSys string, sysctls map[string]string) error {
	dir, err := os.OpenRoot(filepath.Join(procSys, "net/ipv6/conf", podIf))
	if err != nil {
		return fmt.Errorf("sysctls of the pod's link: %w", err)
	}
	defer dir.Close()
	for _, name := range []string{"accept_dad", "accept_ra"} {
		if _, chosen := sysctls["net.ipv6.conf.default."+name]; chosen {
			continue
		}
		if err := dir.WriteFile(name, []byte("0"), 0); err != nil {
			return fmt.Errorf("sysctls of the pod's link: %w", err)
		}
	}
	return nil
}
