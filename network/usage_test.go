package network

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestUsageOfHostileInterfaces: what a pod calls its interfaces, and how many it makes, is no
// trouble of others.
func TestUsageOfHostileInterfaces(t *testing.T) {
	link := func(name string, flags net.Flags) netlink.Link {
		return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, Flags: flags, Statistics: &netlink.LinkStatistics{RxBytes: 7}}}
	}
	links := []netlink.Link{link("lo", net.FlagLoopback), link("no\xfftext", 0)}
	for i := range 2 * maxInterfaces {
		links = append(links, link(fmt.Sprint("d", i), 0))
	}
	got := usageOf(append(links, link(podIf, 0)))
	if len(got) != maxInterfaces || got[0] != (InterfaceUsage{Name: podIf, RxBytes: 7}) || got[1].Name != "d0" {
		t.Errorf("%d interfaces, first %+v", len(got), got[:2])
	}
	if got := usageOf(nil); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}
