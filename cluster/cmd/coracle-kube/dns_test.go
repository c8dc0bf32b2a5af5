package main

import (
	"fmt"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
)

func TestWherePodsFindDNS(t *testing.T) {
	for name, tc := range map[string]struct {
		flags    []string
		services string
		want     string // what the kubelet hands out
		serves   bool
	}{
		"the tenth address":                {nil, "10.96.0.0/16", "[10.96.0.10]", true},
		"the tenth address, IPv6":          {nil, "fd00:96::/112", "[fd00:96::a]", true},
		"two networks":                     {nil, "10.96.0.0/16,fd00:96::/112", "[10.96.0.10]", true},
		"another of the second":            {[]string{"fd00:96::35"}, "10.96.0.0/16,fd00:96::/112", "[fd00:96::35]", true},
		"another":                          {[]string{"10.96.0.53"}, "10.96.0.0/16", "[10.96.0.53]", true},
		"none":                             {[]string{"none"}, "10.96.0.0/16", "[]", false},
		"a DNS elsewhere":                  {[]string{"192.0.2.53"}, "10.96.0.0/16", "[192.0.2.53]", false},
		"a kubelet alone":                  {nil, "", "[]", false},
		"a kubelet alone that was told of": {[]string{"10.96.0.10"}, "", "[10.96.0.10]", true},
	} {
		t.Run(name, func(t *testing.T) {
			n, services := nodeOptions{name: "n", dns: tc.flags}, (&apiOptions{serviceCIDR: tc.services}).services()
			if got := fmt.Sprint(n.kubelet(t.TempDir(), services).ClusterDNS); got != tc.want {
				t.Errorf("pods ask %s, not %s", got, tc.want)
			}
			kube := fake.NewClientset()
			set := &client.Set{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
			s, err := newDNS(set, services, n, dnsOptions{}, func() *health.Part { return nil })
			if err != nil || (s != nil) != tc.serves {
				t.Errorf("DNS %v, %v", s, err)
			}
		})
	}
}

func TestStubDomains(t *testing.T) {
	o := dnsOptions{stubs: []string{"Corp.Example=10.0.0.53", "corp.example.=10.0.0.54:5353", "lab=fd00::53", "net=[fd00::54]:5353"}}
	got, err := o.servers()
	if want := "map[corp.example.:[10.0.0.53:53 10.0.0.54:5353] lab.:[[fd00::53]:53] net.:[[fd00::54]:5353]]"; err != nil ||
		fmt.Sprint(got) != want {
		t.Errorf("%v, %v, not %s", got, err, want)
	}
}
