package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/dns"
	"github.com/coracle-project/coracle/cluster/policy/compile"
	"github.com/coracle-project/coracle/cluster/why"
)

// Regression: of a cluster with another domain than cluster.local, why knew no name.
func TestWhyInAnotherDomain(t *testing.T) {
	api := fake.NewClientset(
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
			Spec:       corev1.PodSpec{NodeName: "here", DNSPolicy: corev1.DNSClusterFirst},
			Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.85.0.2"}}},
		},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20"}, Ports: []corev1.ServicePort{{Port: 80}}},
		},
	)
	set := &client.Set{Kube: api, Informers: client.NewInformers(api)}
	const domain = "corp.example"
	names, err := dns.New(set, dns.Options{
		Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Domain: domain,
		ResolvConf: "/dev/null",
	})
	if err != nil {
		t.Fatal(err)
	}
	a := newAsker(set.Informers, "here", domain, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, nil, names, nil)
	a.ClusterDNS = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	a.PodDNS = func(context.Context, *corev1.Pod) (*runtimeapi.DNSConfig, error) {
		return &runtimeapi.DNSConfig{
			Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc." + domain, "svc." + domain, domain},
			Options: []string{"ndots:5"},
		}, nil
	}
	a.Elsewhere = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
	ctx, cancel := context.WithCancel(context.Background())
	set.Informers.Start(ctx.Done())
	t.Cleanup(func() { cancel(); set.Informers.Shutdown() })
	set.Informers.WaitForCacheSync(t.Context().Done())
	answer, err := a.Why(t.Context(), why.Question{Namespace: "shop", Source: "pod/cart", Destination: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Destination.Name != "web.shop.svc.corp.example." || len(answer.Connections) != 1 ||
		answer.Connections[0].Destination.String() != "10.96.0.20:80" {
		t.Errorf("%+v", answer)
	}
	if _, err := a.Why(t.Context(), why.Question{Namespace: "shop", Source: "pod/cart", Destination: "none:80"}); err == nil ||
		!strings.Contains(err.Error(), "tried none.shop.svc.corp.example., none.svc.corp.example., none.corp.example., none.;") {
		t.Errorf("a name that does not exist: %v", err)
	}
}

// A ClusterNetworkPolicy that decides is named, with its tier and rule.
func TestWhyNamesClusterNetworkPolicies(t *testing.T) {
	for _, test := range []struct {
		half compile.Half
		want string
	}{
		{
			compile.Half{
				Kind: compile.Here, Selecting: []types.NamespacedName{{Name: "wall"}},
				Ruling: &compile.Ruling{Policy: "wall", Tier: "Admin", Rule: "no-guests"},
			},
			`ClusterNetworkPolicy wall (Admin) denies it by its rule "no-guests"`,
		},
		{
			compile.Half{Kind: compile.Here, Allowed: true, Ruling: &compile.Ruling{Policy: "gate", Tier: "Baseline", Accepted: true}},
			"ClusterNetworkPolicy gate (Baseline) accepts it",
		},
		{
			compile.Half{Kind: compile.Here, Ruling: &compile.Ruling{Accepted: true}, Allowing: []types.NamespacedName{{Name: "gate"}}},
			"policies allow it, and the rules are not in force yet or have no room; the policies' Events say more",
		},
		{
			compile.Half{Kind: compile.Here, Allowed: true, Selecting: []types.NamespacedName{{Name: "wall"}}},
			"no policy denies it, and there is no NetworkPolicy for the pod",
		},
		{
			compile.Half{Kind: compile.Here, Unplaced: true},
			"the namespace of one of the pods is not known yet, and with it which ClusterNetworkPolicies are about it",
		},
	} {
		if got := direction(test.half); got.Because != test.want || got.Allowed != test.half.Allowed {
			t.Errorf("%+v: %+v, want %s", test.half, got, test.want)
		}
	}
	if got := direction(compile.Half{
		Selecting: []types.NamespacedName{{Name: "wall"}, {Namespace: "x", Name: "p"}},
		Kind:      compile.Here,
	}).Selecting; strings.Join(got, ", ") != "ClusterNetworkPolicy wall, x/p" {
		t.Errorf("selecting are %v", got)
	}
}
