package integration

import (
	"errors"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// removeLink deletes what the bridge plugin leaves on purpose: its bridge.
func removeLink(t *testing.T, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
}

// removeTable deletes nftables tables, of any family, that the portmap plugin leaves.
func removeTable(t *testing.T, name string) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range all {
		if table.Name == name {
			c.DelTable(table)
		}
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}
