package firewall

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
)

// TestPortElements: each protocol and family has its key in the map of its family.
func TestPortElements(t *testing.T) {
	pod4, pod6 := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")
	for protocol, number := range map[string]byte{"tcp": 6, "udp": 17, "sctp": 132} {
		for _, pod := range []netip.Addr{pod4, pod6} {
			for _, host := range []netip.Addr{{}, pod} {
				name, key := "ports4", []byte(nil)
				if pod.Is6() {
					name = "ports6"
				}
				if host.IsValid() {
					name, key = "addr"+name, host.AsSlice()
				}
				got := portElements([]PodPort{{HostPort: HostPort{Protocol: protocol, Port: 0x1234, IP: host, Target: 0x5678}, Pod: pod}})
				if len(got) != 1 || len(got[name]) != 1 {
					t.Fatalf("%s to %s: %v, want one in %s", protocol, pod, got, name)
				}
				e := got[name][0]
				if want := append(slices.Clone(key), number, 0, 0, 0, 0x12, 0x34, 0, 0); !bytes.Equal(e.Key, want) {
					t.Errorf("%s to %s: key %v, want %v", protocol, pod, e.Key, want)
				}
				if want := append(pod.AsSlice(), 0x56, 0x78, 0, 0); !bytes.Equal(e.Val, want) {
					t.Errorf("%s to %s: value %v, want %v", protocol, pod, e.Val, want)
				}
			}
		}
	}
}
