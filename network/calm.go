package network

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
		err := calmHere()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EROFS) { // no IPv6; a daemon in a container
			return nil
		}
		return err
	})
}

// calmHere is calm in the thread's network namespace. The directory is opened once: finding it takes
// the kernel longer the more namespaces have one of that name.
func calmHere() error {
	dir, err := os.OpenRoot(filepath.Join(netSysctls, "ipv6/conf", podIf))
	if err != nil {
		return fmt.Errorf("sysctls of the pod's link: %w", err)
	}
	defer dir.Close()
	for _, name := range []string{"accept_dad", "accept_ra"} {
		if err := replaceDefault(dir, name, '1', '0'); err != nil {
			return fmt.Errorf("sysctls of the pod's link: %w", err)
		}
	}
	return nil
}

// replaceDefault writes a value of one digit if the kernel's default is there, and leaves alone what somebody chose.
func replaceDefault(dir *os.Root, name string, standard, value byte) error {
	f, err := dir.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	now := make([]byte, 16)
	n, err := f.ReadAt(now, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(bytes.TrimSpace(now[:n])) != string(standard) {
		return nil
	}
	_, err = f.WriteAt([]byte{value}, 0)
	return err
}
