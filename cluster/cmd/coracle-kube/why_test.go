package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/dns"
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
	names, err := dns.New(set, dns.Options{Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Domain: domain, ResolvConf: "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	a := newAsker(set.Informers, "here", domain, "10.96.0.0/16", nil, names, nil)
	a.ClusterDNS = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	a.PodDNS = func(context.Context, *corev1.Pod) (*runtimeapi.DNSConfig, error) {
		return &runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc." + domain, "svc." + domain, domain}, Options: []string{"ndots:5"}}, nil
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
	if answer.Destination.Name != "web.shop.svc.corp.example." || len(answer.Connections) != 1 || answer.Connections[0].Destination.String() != "10.96.0.20:80" {
		t.Errorf("%+v", answer)
	}
	if _, err := a.Why(t.Context(), why.Question{Namespace: "shop", Source: "pod/cart", Destination: "none:80"}); err == nil || !strings.Contains(err.Error(), "tried none.shop.svc.corp.example., none.svc.corp.example., none.corp.example., none.;") {
		t.Errorf("a name that does not exist: %v", err)
	}
}
