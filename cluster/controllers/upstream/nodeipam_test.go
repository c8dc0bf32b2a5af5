package upstream_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/controllers/upstream"
)

// Each node gets a network of each family, and one that is gone leaves its network to others.
func TestNodesGetNetworks(t *testing.T) {
	c := whole(t)
	ctx, _ := c.namespace(t)
	nodes := c.kube.CoreV1().Nodes()
	networks := func(name string) (got []string) {
		t.Helper()
		if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nodes.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}) })
		eventually(ctx, t, "networks of node "+name, func() (bool, error) {
			n, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			got = n.Spec.PodCIDRs
			return len(got) > 0, nil
		})
		return got
	}
	seen := map[netip.Prefix]bool{}
	for _, name := range []string{"ipam-one", "ipam-two"} {
		got := networks(name)
		if len(got) != 2 {
			t.Fatalf("%s has %v", name, got)
		}
		for i, bits := range []int{24, 64} {
			p, err := netip.ParsePrefix(got[i])
			if err != nil || p.Bits() != bits || !podRanges.Pods[i].Overlaps(p) || seen[p] {
				t.Errorf("%s has %v, %v", name, got, err)
			}
			seen[p] = true
		}
	}
}

func TestPodRangesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ pods, services, want string }{
		"no network":           {"10.85.0.1/16", "", "would be 10.85.0.0/16"},
		"two of a family":      {"10.85.0.0/16 10.86.0.0/16", "", "same family"},
		"too small":            {"10.85.0.0/25", "", "does not divide"},
		"too large":            {"fd00::/40", "", "between /48 and /64"},
		"Services' network":    {"10.96.0.0/12", "10.96.0.0/16", "overlaps 10.96.0.0/16, the network of Services"},
		"good":                 {"10.85.0.0/16 fd85:c0ac:1e00::/48", "10.96.0.0/16", ""},
		"good, for one node":   {"10.85.0.0/24", "", ""},
		"good, of IPv6 only":   {"fd85:c0ac:1e00::/48", "", ""},
		"a service range of 6": {"fd85:c0ac:1e00::/48", "fd85:c0ac:1e00:1::/112", "overlaps"},
	} {
		err := upstream.PodRanges{Pods: prefixes(c.pods), Services: prefixes(c.services)}.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func prefixes(text string) (all []netip.Prefix) {
	for _, one := range strings.Fields(text) {
		all = append(all, netip.MustParsePrefix(one))
	}
	return all
}

// podRanges are what the shared cluster's nodes get.
var podRanges = upstream.PodRanges{Pods: prefixes("10.85.0.0/16 fd85:c0ac:1e00::/48")}
