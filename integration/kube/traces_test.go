package kube

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// traces are what a cluster has on this machine outside of its directories: nftables tables,
// addresses of lo, where pods reach the API server and the DNS, and cgroups.
type traces struct{ tables, addresses, cgroups []string }

func findTraces(t *testing.T, cgroup string) (found traces) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if strings.HasPrefix(table.Name, "coracle-") {
			found.tables = append(found.tables, "table "+table.Name)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := netlink.AddrList(lo, netlink.FAMILY_ALL)
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		addresses, err = netlink.AddrList(lo, netlink.FAMILY_ALL)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		found.addresses = append(found.addresses, "address "+a.IPNet.String()+" of lo")
	}
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} { // the one, or version 1's
		all, err := filepath.Glob(filepath.Join(hierarchy, cgroup))
		if err != nil {
			t.Fatal(err)
		}
		found.cgroups = append(found.cgroups, all...)
	}
	return found
}

// since leaves out what was there before.
func (a traces) since(before traces) traces {
	rest := func(all, before []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(before, s) })
	}
	return traces{rest(a.tables, before.tables), rest(a.addresses, before.addresses), rest(a.cgroups, before.cgroups)}
}

func (a traces) all() []string { return slices.Concat(a.tables, a.addresses, a.cgroups) }
