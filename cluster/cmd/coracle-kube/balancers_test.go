package main

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

func TestFlagsOfLoadBalancers(t *testing.T) {
	for name, test := range map[string]struct {
		o    balancerOptions
		want string // of the error, "" for none
		pool string
		off  bool
	}{
		"none given":     {},
		"left to others": {o: balancerOptions{ranges: []string{"none"}}, off: true},
		"two ranges": {
			o:    balancerOptions{ranges: []string{"10.0.0.8/29", "fd00::1-fd00::9"}, link: "eth0"},
			pool: "10.0.0.8-10.0.0.15, fd00::1-fd00::9",
		},
		"no range":                   {o: balancerOptions{ranges: []string{"many"}}, want: `--load-balancer-cidr: "many" is no range`},
		"none and one":               {o: balancerOptions{ranges: []string{"none", "10.0.0.1"}}, want: `"none" is no range`},
		"Services' addresses":        {o: balancerOptions{ranges: []string{"10.95.0.0-10.96.0.7"}}, want: "overlaps --service-cidr 10.96.0.0/16"},
		"pods' addresses":            {o: balancerOptions{ranges: []string{"10.85.7.0/28"}}, want: "overlaps --pod-cidr 10.85.0.0/16"},
		"an interface for nothing":   {o: balancerOptions{link: "eth0"}, want: "--load-balancer-interface eth0"},
		"an interface for no others": {o: balancerOptions{ranges: []string{"none"}, link: "eth0"}, want: "--load-balancer-interface eth0"},
	} {
		err := test.o.check([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.85.0.0/16")})
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", name, err, test.want)
			}
			continue
		}
		o := test.o.controller(6443, 10250)
		if err != nil || (o == nil) != test.off {
			t.Errorf("%s: %+v, %v", name, o, err)
			continue
		}
		if o != nil && (o.Pool.String() != test.pool || o.Reserved[6443] == "" || o.Reserved[10250] == "") {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// An interface's name has 15 characters at most, whatever the port.
func TestNamesOfSinks(t *testing.T) {
	if name := balancerSink(65535); len(name) > 15 {
		t.Errorf("%s has %d characters", name, len(name))
	}
	flags := serverCommand(discard, nil).Flags()
	if flags.Lookup("load-balancer-cidr") == nil || flags.Lookup("load-balancer-interface") == nil {
		t.Error("server has no flags for load balancers")
	}
}

// A pool with the network's gateway is not announced, also when no up has checked it. What an
// earlier run has announced ends then, and without a pool.
func TestPoolsThatAreNotAnnounced(t *testing.T) {
	for name, ranges := range map[string][]string{"a gateway": {"192.0.2.8/29"}, "no pool": nil} {
		t.Run(name, func(t *testing.T) {
			node := testnet.New(t)
			node.Run("ip link add " + balancerSink(6443) + " type veth peer name far")
			own := &nodeProcess{nodeOptions: nodeOptions{log: discard}, port: 6443, balancers: balancerOptions{ranges: ranges}}
			var board health.Board
			node.Within(func() {
				run, err := newSpeaker(own, func() *health.Part { return board.Add("load balancers") })
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := net.InterfaceByName(balancerSink(6443)); err != nil {
					t.Errorf("the announcements are removed before the server has its port: %v", err)
				}
				if err := run(t.Context()); err != nil { // it returns: nothing is announced
					t.Error(err)
				}
				if _, err := net.InterfaceByName(balancerSink(6443)); err == nil {
					t.Error("announcements of an earlier run are left")
				}
			})
			states := board.States()
			if ranges == nil && len(states) == 0 {
				return
			}
			if len(states) != 1 || states[0].Healthy || !strings.Contains(states[0].Message, "192.0.2.9, a gateway by out") {
				t.Errorf("the health is %+v", states)
			}
		})
	}
}
