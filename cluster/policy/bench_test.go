package policy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/policy/compile"
)

// BenchmarkAdmit is what policies add to the start of a pod: until its rules are in the kernel,
// among 2,000 pods.
func BenchmarkAdmit(b *testing.B) {
	for _, policies := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("%d policies", policies), func(b *testing.B) {
			l := newLive(b)
			l.run()
			<-l.did
			pod := func(i int) *corev1.Pod {
				return &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: "x", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"app": fmt.Sprint(i % 100)},
					},
					Spec: corev1.PodSpec{NodeName: "here"},
				}
			}
			address := func(i int) []netip.Addr {
				return []netip.Addr{
					netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}),
				}
			}
			l.p.mu.Lock()
			for i := range 2000 {
				p := pod(i)
				if i >= 110 {
					p.Spec.NodeName = "there"
				}
				l.p.state.SetPod(compile.IDOf(p), p, address(i), false)
			}
			for i := range policies {
				app := func(i int) metav1.LabelSelector {
					return metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i % 100)}}
				}
				peer := app(i + 1 + i/100)
				l.p.state.SetPolicy(&networkingv1.NetworkPolicy{
					ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint(i)},
					Spec: networkingv1.NetworkPolicySpec{
						PodSelector: app(i), Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &peer}}}},
					},
				})
			}
			l.p.mu.Unlock()
			if err := l.p.Admit(b.Context(), pod(5000), address(5000)); err != nil {
				b.Fatal(err)
			}
			next := 10_000
			for b.Loop() {
				next++
				if err := l.p.Admit(b.Context(), pod(next), address(next)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
