package main

import (
	"strings"
	"testing"
)

func TestFlagsOfLoadBalancers(t *testing.T) {
	for name, test := range map[string]struct {
		o    balancerOptions
		want string // of the error, "" for none
		pool string
		off  bool
	}{
		"none given":                 {},
		"left to others":             {o: balancerOptions{ranges: []string{"none"}}, off: true},
		"two ranges":                 {o: balancerOptions{ranges: []string{"10.0.0.8/29", "fd00::1-fd00::9"}, link: "eth0"}, pool: "10.0.0.8-10.0.0.15, fd00::1-fd00::9"},
		"no range":                   {o: balancerOptions{ranges: []string{"many"}}, want: `--load-balancer-cidr: "many" is no range`},
		"none and one":               {o: balancerOptions{ranges: []string{"none", "10.0.0.1"}}, want: `"none" is no range`},
		"Services' addresses":        {o: balancerOptions{ranges: []string{"10.95.0.0-10.96.0.7"}}, want: "overlaps --service-cidr 10.96.0.0/16"},
		"an interface for nothing":   {o: balancerOptions{link: "eth0"}, want: "--load-balancer-interface eth0"},
		"an interface for no others": {o: balancerOptions{ranges: []string{"none"}, link: "eth0"}, want: "--load-balancer-interface eth0"},
	} {
		err := test.o.check("10.96.0.0/16")
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
	if flags := serverCommand().Flags(); flags.Lookup("load-balancer-cidr") == nil || flags.Lookup("load-balancer-interface") == nil {
		t.Error("server has no flags for load balancers")
	}
}
