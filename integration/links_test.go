package integration

import (
	"errors"
	"testing"

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
