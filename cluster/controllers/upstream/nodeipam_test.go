package upstream_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
)

// Each node gets a network of each family.
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

// The API server refuses a change of a Node that another one of its name has replaced.
func TestReplacedNodesAreNotChanged(t *testing.T) {
	c := whole(t)
	ctx, _ := c.namespace(t)
	const name = "ipam-replaced"
	nodes := c.kube.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nodes.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}) })
	write := nodepatch.New(nodes)
	change := nodepatch.Change{UID: "another", Labels: map[string]string{"test": "set"}}
	if err := write.Apply(ctx, name, change); !apierrors.IsInvalid(err) {
		t.Errorf("a change of another Node: %v", err)
	}
	change.UID = node.UID
	if err := write.Apply(ctx, name, change); err != nil {
		t.Errorf("a change of this Node: %v", err)
	}
}

// A network from elsewhere neither takes the cluster's networks, nor frees them when its node is
// deleted, nor keeps the controller from starting; and one that is gone leaves its network to
// others. There are two networks in all.
func TestForeignNetworksOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		named := func(name string, ranges ...string) *corev1.Node {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
			if n.Spec.PodCIDRs = ranges; len(ranges) > 0 {
				n.Spec.PodCIDR = ranges[0]
			}
			return n
		}
		kube := fake.NewClientset(named("all", "0.0.0.0/0"), named("outside", "192.0.2.0/24"), named("whole", "10.85.0.0/23"),
			named("garbage", "x"), named("two", "10.85.0.0/24", "fd00::/64"))
		set := &client.Set{Kube: kube, Informers: client.NewInformers(kube)}
		nodes := kube.CoreV1().Nodes()
		done := make(chan struct{})
		ipam := upstream.NewNodeIPAM(set, nodepatch.New(nodes), upstream.PodRanges{Pods: prefixes("10.85.0.0/23")})
		set.Informers.Start(ctx.Done())
		go func() {
			defer close(done)
			ipam.Run(ctx)
		}()
		settle := func() {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		expect := func(when, name string, want ...string) {
			t.Helper()
			settle()
			n, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if err != nil || !slices.Equal(n.Spec.PodCIDRs, want) {
				t.Errorf("%s: %s has %v, want %v, %v", when, name, n.Spec.PodCIDRs, want, err)
			}
		}
		create := func(n *corev1.Node) {
			if _, err := nodes.Create(ctx, n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			settle()
		}
		remove := func(name string) {
			if err := nodes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			settle()
		}
		settle()
		create(named("late", "10.85.0.0/16"))
		create(named("one"))
		expect("next to foreign networks", "one", "10.85.1.0/24")
		for _, name := range []string{"all", "outside", "whole", "garbage", "late"} {
			remove(name)
		}
		create(named("three"))
		expect("foreign networks were deleted, and none is free", "three")
		remove("two")
		settle()
		expect("one is gone", "three", "10.85.0.0/24")
		create(named("four"))
		time.Sleep(time.Hour) // in which it is tried again and again
		expect("none is free", "four")
		events, err := kube.CoreV1().Events("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		warned, full := map[string]bool{}, 0
		for i := range events.Items {
			if e := &events.Items[i]; e.Reason == "CIDRNotAvailable" {
				full++
				late := e.InvolvedObject.Name == "three" || e.InvolvedObject.Name == "four"
				if !late || e.Type != corev1.EventTypeWarning || !strings.Contains(e.Message, "--pod-cidr") {
					t.Errorf("event %+v", e)
				}
			}
			if events.Items[i].Reason == "ForeignPodCIDR" {
				warned[events.Items[i].InvolvedObject.Name] = true
			}
		}
		if len(warned) != 6 {
			t.Errorf("warned of %v", warned)
		}
		again := 0
		for _, a := range kube.Actions() {
			if a.GetVerb() == "patch" && a.GetResource().Resource == "events" {
				again++
			}
		}
		if full != 2 || again == 0 || again > 6 { // of some 40
			t.Errorf("%d events of two nodes without a network, want 2; written again %d times", full, again)
		}
		stop()
		<-done
		set.Informers.Shutdown()
	})
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
