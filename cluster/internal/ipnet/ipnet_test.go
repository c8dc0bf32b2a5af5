package ipnet

import (
	"net"
	"testing"
)

func TestPrefix(t *testing.T) {
	for want, n := range map[string]*net.IPNet{
		"192.0.2.7/24":    {IP: net.ParseIP("192.0.2.7"), Mask: net.CIDRMask(24, 32)}, // in 16 bytes
		"192.0.2.8/32":    {IP: net.IP{192, 0, 2, 8}, Mask: net.CIDRMask(32, 32)},
		"0.0.0.0/0":       {IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
		"2001:db8::7/64":  {IP: net.ParseIP("2001:db8::7"), Mask: net.CIDRMask(64, 128)},
		"2001:db8::8/128": {IP: net.ParseIP("2001:db8::8"), Mask: net.CIDRMask(128, 128)},
	} {
		if got, ok := Prefix(n); !ok || got.String() != want {
			t.Errorf("%v: %s, %v, want %s", n, got, ok, want)
		}
	}
	for name, n := range map[string]*net.IPNet{
		"a default route":         nil,
		"no address":              {Mask: net.CIDRMask(24, 32)},
		"a mask that is no range": {IP: net.IP{192, 0, 2, 7}, Mask: net.IPMask{255, 0, 255, 0}},
	} {
		if got, ok := Prefix(n); ok {
			t.Errorf("%s: %s", name, got)
		}
	}
}
