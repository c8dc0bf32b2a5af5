package leak

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
)

// mounts lists the mount table; pinned namespaces are in it as nsfs.
func mounts(add func(kind, what string)) error {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	for _, m := range all {
		add("mount", m.FSType+" on "+m.Mountpoint)
	}
	return nil
}

// cgroups lists, in every hierarchy, the groups whose path contains one of names.
func cgroups(names []string, add func(kind, what string)) error {
	if len(names) == 0 {
		return nil
	}
	return filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed while we walked
		case err != nil:
			return fmt.Errorf("cgroups: %w", err)
		case !d.IsDir():
			return nil
		}
		for _, n := range names {
			if strings.Contains(p, n) {
				add("cgroup", p)
				break
			}
		}
		return nil
	})
}

// links lists network devices by name.
func links(add func(kind, what string)) error {
	all, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		all, err = netlink.LinkList()
	}
	if err != nil {
		return fmt.Errorf("links: %w", err)
	}
	for _, l := range all {
		add("link", l.Type()+" "+l.Attrs().Name)
	}
	return nil
}

// routes lists routes and addresses of the host.
func routes(add func(kind, what string)) error {
	all, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		all, err = netlink.RouteList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	for _, r := range all {
		add("route", fmt.Sprintf("%v, type %d, link %d", r.Dst, r.Type, r.LinkIndex))
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		addrs, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	for _, a := range addrs {
		add("address", a.IPNet.String())
	}
	return nil
}

// tables lists nftables tables.
func tables(add func(kind, what string)) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	all, err := c.ListTables()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, t := range all {
		add("nftables table", fmt.Sprintf("%s (family %d)", t.Name, t.Family))
	}
	return nil
}

// files lists everything below the directories.
func files(dirs []string, add func(kind, what string)) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("files: %w", err)
			}
			add("file", p)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
