package compile

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// large are 10,000 pods in 100 namespaces, of which 110 are of this node, and 1,000 policies. Each
// is for the pods of an app, and allows another app, all pods of a namespace, and a network.
func large() (pods []*corev1.Pod, policies []*networkingv1.NetworkPolicy) {
	app := func(i int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app", i%10)}}
	}
	for i := range 10_000 {
		ns, number := fmt.Sprint("ns", i/100), i%100
		p := newPod(ns, fmt.Sprint("pod", i), 0, func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": fmt.Sprint("app", number%10), "pod-template-hash": fmt.Sprint(number % 10), "team": ns}
			p.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, {IP: fmt.Sprintf("fd00::%x", i)}}
			if i%91 != 0 {
				p.Spec.NodeName = "there"
			}
		})
		pods = append(pods, p)
	}
	for i := range 1000 {
		ports := []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(80))}, {Port: ptr.To(intstr.FromString("web"))}}
		policies = append(policies, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i/10), Name: fmt.Sprint("policy", i), UID: types.UID(fmt.Sprint(i))},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: *app(i),
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From: []networkingv1.NetworkPolicyPeer{
						{PodSelector: app(i + 1)},
						{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": fmt.Sprint("ns", i%100)}}},
						{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("203.%d.0.0/16", i%200), Except: []string{fmt.Sprintf("203.%d.7.0/24", i%200)}}},
					},
					Ports: ports,
				}},
				Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{
					NamespaceSelector: &metav1.LabelSelector{},
					PodSelector:       app(i + 2),
				}}, Ports: ports}},
			},
		})
	}
	return pods, policies
}

func filled(pods []*corev1.Pod, policies []*networkingv1.NetworkPolicy) *State {
	s := New(here, DefaultLimits)
	for i := range 100 {
		s.SetNamespace(fmt.Sprint("ns", i), map[string]string{"name": fmt.Sprint("ns", i)})
	}
	for _, p := range pods {
		s.SetPod(IDOf(p), p, Addresses(p), false)
	}
	for _, p := range policies {
		s.SetPolicy(p)
	}
	return s
}

// kept reports how much memory a State takes.
func kept(b *testing.B, build func() *State) {
	heap := func() float64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc)
	}
	before := heap()
	var s *State
	for b.Loop() {
		s = build()
	}
	b.ReportMetric((heap()-before)/(1<<20), "MB")
	runtime.KeepAlive(s)
}

func BenchmarkFirst(b *testing.B) {
	pods, policies := large()
	kept(b, func() *State {
		s := filled(pods, policies)
		s.Take()
		return s
	})
}

// BenchmarkKnown is what is kept while there are no policies.
func BenchmarkKnown(b *testing.B) {
	pods, _ := large()
	kept(b, func() *State { return filled(pods, nil) })
}

func BenchmarkPodStart(b *testing.B) {
	for name, count := range map[string]int{"100 policies": 100, "1000 policies": 1000} {
		b.Run(name, func(b *testing.B) {
			pods, policies := large()
			s := filled(pods, policies[:count])
			s.Take()
			p := pods[0].DeepCopy()
			p.Name, p.UID = "one more", "one more"
			p.Status.PodIPs = []corev1.PodIP{{IP: "10.255.0.1"}, {IP: "fd00::ff:1"}}
			id, addresses := IDOf(p), Addresses(p)
			for b.Loop() {
				s.SetPod(id, p, addresses, true)
				if r := s.Take(); len(r.Change.Pods) != 2 {
					b.Fatalf("%+v", r.Change)
				}
				s.DeletePod(id)
				s.Take()
			}
		})
	}
}

func BenchmarkPolicyChange(b *testing.B) {
	pods, policies := large()
	s := filled(pods, policies)
	s.Take()
	changed := policies[0].DeepCopy()
	changed.Spec.Ingress[0].Ports[0].Port = ptr.To(intstr.FromInt32(81))
	for b.Loop() {
		s.SetPolicy(changed)
		s.Take()
		s.SetPolicy(policies[0])
		s.Take()
	}
}
