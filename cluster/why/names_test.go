package why

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A pod's dnsPolicy and dnsConfig say how its names resolve: the same as its resolv.conf, which the
// kubelet writes by the same code.
func TestNamesFollowThePodsResolvConf(t *testing.T) {
	a := newTestAsker(t)
	a.PodDNS = podDNS(t, "search lan.example\nnameserver 192.0.2.53\n").GetPodDNS
	ndots := func(value string) *corev1.PodDNSConfig {
		return &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &value}}}
	}
	const (
		cluster = "NAME.shop.svc.cluster.local., NAME.svc.cluster.local., NAME.cluster.local., NAME.lan.example."
		web     = "10.96.0.20:80/TCP reached"
		outside = "; the source does not ask the cluster's DNS, but "
	)
	for name, tc := range map[string]struct {
		policy      corev1.DNSPolicy
		hostNetwork bool
		config      *corev1.PodDNSConfig
		to          string
		want        string // of the answer, or of the error; NAME is the name asked for
	}{
		"ClusterFirst":        {policy: corev1.DNSClusterFirst, to: "none", want: "tried " + cluster + ", NAME.;"},
		"ClusterFirst, found": {policy: corev1.DNSClusterFirst, to: "web", want: web},
		"ClusterFirst, the host network": {policy: corev1.DNSClusterFirst, hostNetwork: true, to: "web", want: "tried NAME.lan.example., NAME." +
			outside + "192.0.2.53"},
		"ClusterFirstWithHostNet": {policy: corev1.DNSClusterFirstWithHostNet, hostNetwork: true, to: "web", want: web},
		"Default": {policy: corev1.DNSDefault, to: "web", want: "tried NAME.lan.example., NAME." + outside +
			"192.0.2.53"},
		"Default, the node's servers": {
			policy: corev1.DNSDefault, to: "www.example.org",
			want: "but 192.0.2.53, which may answer something else",
		},
		"None, other servers": {
			policy: corev1.DNSNone, config: &corev1.PodDNSConfig{Nameservers: []string{"198.51.100.53"}},
			to: "web.shop.svc.cluster.local", want: "tried NAME." + outside + "198.51.100.53",
		},
		"None, the cluster's DNS": {
			policy: corev1.DNSNone, config: &corev1.PodDNSConfig{Nameservers: []string{"10.96.0.10"}},
			to: "web.shop.svc.cluster.local", want: web,
		},
		"None, with a domain to search": {
			policy: corev1.DNSNone,
			config: &corev1.PodDNSConfig{Nameservers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local"}}, to: "web", want: web,
		},
		"None, and no domain to search": {
			policy: corev1.DNSNone, config: &corev1.PodDNSConfig{Nameservers: []string{"10.96.0.10"}}, to: "web",
			want: "tried NAME.; svc",
		},
		"a server before the cluster's": {
			policy: corev1.DNSNone,
			config: &corev1.PodDNSConfig{Nameservers: []string{"198.51.100.53", "10.96.0.10"}}, to: "web.shop.svc.cluster.local",
			want: outside + "198.51.100.53, 10.96.0.10",
		},
		"a further server": {
			policy: corev1.DNSClusterFirst, config: &corev1.PodDNSConfig{Nameservers: []string{"198.51.100.53"}},
			to: "web", want: web,
		},
		"a further domain": {
			policy: corev1.DNSClusterFirst, config: &corev1.PodDNSConfig{Searches: []string{"corp.example"}},
			to: "none", want: "tried " + cluster + ", NAME.corp.example., NAME.;",
		},
		"fewer dots": {policy: corev1.DNSClusterFirst, config: ndots("1"), to: "none.shop", want: "tried NAME., " + cluster +
			";"},
		"more dots than a resolver takes": {policy: corev1.DNSClusterFirst, config: ndots("99"), to: "none.shop", want: "tried " + cluster +
			", NAME.;"},
		"ndots without a number": {policy: corev1.DNSClusterFirst, config: ndots("many"), to: "none.shop", want: "tried NAME., " +
			cluster + ";"},
		"an option without a value": {
			policy: corev1.DNSClusterFirst,
			config: &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "edns0"}, {Name: "timeout", Value: ptr.To("1")}}}, to: "none",
			want: "tried " + cluster + ", NAME.;",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cart, err := a.Pods.Pods("shop").Get("cart")
			if err != nil {
				t.Fatal(err)
			}
			spec := &cart.Spec // of an informer that nothing else reads
			before := *spec
			defer func() { *spec = before }()
			spec.DNSPolicy, spec.HostNetwork, spec.DNSConfig = tc.policy, tc.hostNetwork, tc.config
			answer, err := a.Why(t.Context(), Question{Namespace: "shop", Source: "pod/cart", Destination: tc.to + ":80"})
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = said(answer)
			}
			if want := strings.ReplaceAll(tc.want, "NAME", tc.to); !strings.Contains(got, want) {
				t.Errorf("%s\nwant %s", got, want)
			}
		})
	}
}
