package doctor

import (
	"net/netip"
	"strings"
	"testing"
)

func TestTunnels(t *testing.T) {
	four, six := netip.MustParsePrefix("10.85.1.0/24"), netip.MustParsePrefix("fd85::1:0/112")
	node := netip.MustParseAddr("10.0.0.2")
	for name, tc := range map[string]struct {
		tunnels []Tunnel
		level   Level
		want    []string // in the only finding
	}{
		"all answer": {[]Tunnel{{Range: four, Node: node}, {Range: six, Node: node}}, OK, []string{four.String(), six.String()}},
		"one node is silent": {
			[]Tunnel{{Range: four, Node: node, Err: "no answer"}}, Error, []string{"VXLAN: no answer", "UDP port 8472", "10.0.0.2"},
		},
		"silent, in families": {
			[]Tunnel{{Range: four, Node: node, Err: "x"}, {Range: six, Node: node, Err: "x"}}, Error, []string{four.String()},
		},
		"encrypted": {[]Tunnel{{Range: four, Encrypted: true, Err: "no answer"}}, Error, []string{"WireGuard", "UDP port 51871"}},
	} {
		all := checkTunnels(&Facts{Tunnels: tc.tunnels})
		if len(all) != 1 || all[0].Level != tc.level || (all[0].Remedy == "") != (tc.level == OK) {
			t.Errorf("%s: %+v", name, all)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(all[0].Message+all[0].Remedy, want) {
				t.Errorf("%s: %+v, want %q", name, all[0], want)
			}
		}
	}
	if checkTunnels(&Facts{}) != nil {
		t.Error("a node without tunnels has findings about them")
	}
}

// Loopback answers without a tunnel, and a network that is not there does not.
func TestEcho(t *testing.T) {
	for _, to := range []string{"127.0.0.1", "::1"} {
		if err := echo(t.Context(), netip.MustParseAddr(to)); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	inNamespace(t, func(run func(stdin string, command ...string)) {
		for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
			if err := echo(t.Context(), netip.MustParseAddr(to)); err == nil {
				t.Errorf("%s answers", to)
			}
		}
	})
}
