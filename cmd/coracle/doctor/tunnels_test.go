package doctor

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// Regression: doctor blamed a firewall where it was not allowed to ask.
func TestTunnelsThatCannotBeAsked(t *testing.T) {
	inNamespace(t, func(run func(stdin string, command ...string)) {
		for _, command := range []string{
			"ip link set lo up", "ip link add vx type vxlan id 1 dstport 8472 dev lo", "ip addr add 10.85.0.0/32 dev vx", "ip link set vx up",
			"ip route add 10.85.1.0/24 via 10.85.1.0 dev vx onlink proto 86",
		} {
			run("", strings.Fields(command)...)
		}
		// Of this thread, which ends with the namespace.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&header, &caps[0])
		caps[0].Effective &^= 1 << unix.CAP_NET_RAW
		if err = errors.Join(err, unix.Capset(&header, &caps[0])); err != nil {
			t.Error(err)
			return
		}
		if all, err := readTunnels(t.Context()); !errors.Is(err, os.ErrPermission) || len(all) > 0 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}
