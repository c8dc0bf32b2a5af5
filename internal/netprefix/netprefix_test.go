package netprefix

import (
	"net/netip"
	"testing"
)

func TestLast(t *testing.T) {
	for network, want := range map[string]string{
		"10.1.0.0/16": "10.1.255.255", "10.1.2.3/16": "10.1.255.255", "10.1.2.0/23": "10.1.3.255", "10.1.2.3/32": "10.1.2.3",
		"0.0.0.0/0": "255.255.255.255", "fd00::/64": "fd00::ffff:ffff:ffff:ffff", "fd00::1/128": "fd00::1",
	} {
		if got := Last(netip.MustParsePrefix(network)); got != netip.MustParseAddr(want) {
			t.Errorf("the last of %s is %s, want %s", network, got, want)
		}
	}
}
