package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// heard keeps the reasons of events.
type heard struct {
	record.FakeRecorder
	reasons []string
}

func (h *heard) Eventf(_ runtime.Object, kind, reason, _ string, _ ...any) {
	h.reasons = append(h.reasons, kind+" "+reason)
}

func (h *heard) WithLogger(klog.Logger) record.EventRecorderLogger { return h }

// What each policy gives a pod.
func TestPodsDNS(t *testing.T) {
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("search lan.example\nnameserver 192.0.2.1\noptions edns0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const (
		cluster = "[10.96.0.10] [shop.svc.cluster.local svc.cluster.local cluster.local lan.example] [ndots:5]"
		host    = "[192.0.2.1] [lan.example] [edns0]"
	)
	for name, tc := range map[string]struct {
		policy      v1.DNSPolicy
		hostNetwork bool
		config      *v1.PodDNSConfig
		withoutDNS  bool
		want        string
		events      []string
	}{
		"ClusterFirst":                        {policy: v1.DNSClusterFirst, want: cluster},
		"ClusterFirst on the node's network":  {policy: v1.DNSClusterFirst, hostNetwork: true, want: host},
		"ClusterFirstWithHostNet":             {policy: v1.DNSClusterFirstWithHostNet, hostNetwork: true, want: cluster},
		"ClusterFirstWithHostNet, of its own": {policy: v1.DNSClusterFirstWithHostNet, want: cluster},
		"Default":                             {policy: v1.DNSDefault, want: host},
		"None": {
			policy: v1.DNSNone, config: &v1.PodDNSConfig{Nameservers: []string{"192.0.2.9"}},
			want: "[192.0.2.9] [] []",
		},
		"ClusterFirst, with an option of its own": {
			policy: v1.DNSClusterFirst,
			config: &v1.PodDNSConfig{Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}}},
			want:   "[10.96.0.10] [shop.svc.cluster.local svc.cluster.local cluster.local lan.example] [ndots:2]",
		},
		"ClusterFirst in a cluster without DNS": {
			policy: v1.DNSClusterFirst, withoutDNS: true, want: host,
			events: []string{"Warning MissingClusterDNS", "Warning MissingClusterDNS"},
		},
		"Default in a cluster without DNS": {policy: v1.DNSDefault, withoutDNS: true, want: host},
		"ClusterFirst, with a domain to search in": {
			policy: v1.DNSClusterFirst, config: &v1.PodDNSConfig{Searches: []string{"corp.example"}},
			want: "[10.96.0.10] [shop.svc.cluster.local svc.cluster.local cluster.local lan.example corp.example] [ndots:5]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till"}}
			pod.Spec.DNSPolicy, pod.Spec.HostNetwork, pod.Spec.DNSConfig = tc.policy, tc.hostNetwork, tc.config
			recorder := &heard{}
			k := &Kubelet{recorder: recorder, opts: Options{
				NodeName: "n", NodeIPs: []string{"192.0.2.2"}, ResolvConf: resolv, ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local",
			}}
			if tc.withoutDNS {
				k.opts.ClusterDNS = nil
			}
			got, err := k.dns().GetPodDNS(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprint(got.Servers, got.Searches, got.Options); text != tc.want || !slices.Equal(recorder.reasons, tc.events) {
				t.Errorf("%s, events %q; not %s, %q", text, recorder.reasons, tc.want, tc.events)
			}
		})
	}
}
