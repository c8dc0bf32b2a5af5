package loadbalancer_test

import (
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cluster/loadbalancer"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// A pool must not take anything from the machine that it has or reaches.
func TestPoolsThatThisMachineNeeds(t *testing.T) {
	for name, test := range map[string]struct {
		prepare string // a command of ip
		pool    string
		want    string // "" if it may be used
	}{
		"of the node's network":     {pool: "192.0.2.100-192.0.2.110"},
		"of no network of the node": {pool: "203.0.113.0/24"},
		"of IPv6":                   {pool: "2001:db8::100/120"},
		"the node's own":            {pool: "192.0.2.0-192.0.2.5", want: "192.0.2.1, an address of out"},
		"the node's own of IPv6":    {pool: "2001:db8::/120", want: "2001:db8::1, an address of out"},
		"a gateway":                 {pool: "192.0.2.8/29", want: "192.0.2.9, a gateway by out"},
		"a network with a route": {
			prepare: "route add 203.0.113.0/24 via 192.0.2.9", pool: "203.0.112.0-203.0.114.0",
			want: "203.0.113.0/24, to which there is a route by out",
		},
		"a pod with a route": {
			prepare: "route add 203.0.113.7 via 192.0.2.9", pool: "203.0.113.0/24",
			want: "203.0.113.7/32, to which there is a route by out",
		},
		"in a network with a route": {prepare: "route add 203.0.113.0/24 via 192.0.2.9", pool: "203.0.113.7"},
		"coracled's pods": {
			prepare: "route add unreachable 10.85.0.0/16 proto 85", pool: "10.85.7.0/24",
			want: "overlaps 10.85.0.0/16, the range of pods",
		},
		"around coracled's pods": {
			prepare: "route add unreachable 10.85.0.0/16 proto 85", pool: "10.84.0.0-10.86.0.0",
			want: "overlaps 10.85.0.0/16, the range of pods",
		},
		"a null route that is others": {prepare: "route add blackhole 10.85.0.0/16", pool: "10.85.7.0/24"},
		"routes of its announcer":     {prepare: "route add 203.0.113.7 dev coracle-lb1", pool: "203.0.113.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			n := testnet.New(t)
			n.Run("ip link add coracle-lb1 type veth peer name far")
			n.Run("ip link set coracle-lb1 up")
			if test.prepare != "" {
				n.Run("ip " + test.prepare)
			}
			p, err := loadbalancer.ParsePool([]string{test.pool})
			if err != nil {
				t.Fatal(err)
			}
			n.Within(func() { err = loadbalancer.CheckHost(p, sink) })
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) ||
				!strings.Contains(err.Error(), "--load-balancer-cidr "+p.String())):
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
