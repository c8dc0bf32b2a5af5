package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/policy/compile"
)

func benchPod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "x", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"app": fmt.Sprint(i % 100)},
		},
		Spec: corev1.PodSpec{NodeName: "here"},
	}
}

func benchAddresses(i int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}),
		netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}),
	}
}

func app(i int) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i % 100)}}
}

// crowded is a node with 110 of 2,000 pods, and policies.
func crowded(b *testing.B, policies int) *live {
	l := newLive(b)
	l.run()
	<-l.did
	l.p.mu.Lock()
	for i := range 2000 {
		p := benchPod(i)
		if i >= 110 {
			p.Spec.NodeName = "there"
		}
		l.p.state.SetPod(compile.IDOf(p), p, benchAddresses(i), false)
	}
	for i := range policies {
		peer := app(i + 1 + i/100)
		l.p.state.SetPolicy(&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint(i)},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: app(i), Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &peer}}}},
			},
		})
	}
	l.p.mu.Unlock()
	if err := l.p.Admit(b.Context(), benchPod(5000), benchAddresses(5000)); err != nil {
		b.Fatal(err)
	}
	return l
}

// BenchmarkAdmit is what policies add to the start of a pod: until its rules are in the kernel,
// among 2,000 pods.
func BenchmarkAdmit(b *testing.B) {
	for _, policies := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("%d policies", policies), func(b *testing.B) {
			l := crowded(b, policies)
			next := 10_000
			for b.Loop() {
				next++
				if err := l.p.Admit(b.Context(), benchPod(next), benchAddresses(next)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAdmitTogether is the start of 20 pods at once, as with a large Deployment.
func BenchmarkAdmitTogether(b *testing.B) {
	l := crowded(b, 1000)
	next := 10_000
	for b.Loop() {
		var pods sync.WaitGroup
		for range 20 {
			next++
			pod, addresses := benchPod(next), benchAddresses(next)
			pods.Go(func() {
				if err := l.p.Admit(b.Context(), pod, addresses); err != nil {
					b.Error(err)
				}
			})
		}
		pods.Wait()
	}
}

// track has the kernel track UDP flows from outside to pods of crowded.
func (l *live) track(count int) {
	l.t.Helper()
	flow := func(i int) *netlink.ConntrackFlow {
		outside, pod := netip.AddrFrom4([4]byte{203, 0, byte(i >> 16), byte(i >> 8)}).AsSlice(), benchAddresses(i % 2000)[0].AsSlice()
		port := uint16(1024 + i%60_000)
		return &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, TimeOut: 3600,
			Forward: netlink.IPTuple{SrcIP: outside, DstIP: pod, Protocol: unix.IPPROTO_UDP, SrcPort: port, DstPort: 80},
			Reverse: netlink.IPTuple{SrcIP: pod, DstIP: outside, Protocol: unix.IPPROTO_UDP, SrcPort: 80, DstPort: port},
		}
	}
	l.Within(func() {
		handle, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			l.t.Error(err)
			return
		}
		defer handle.Close()
		for i := range count {
			if err := handle.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow(i)); err != nil {
				l.t.Errorf("flow %d: %v", i, err)
				return
			}
		}
	})
}

// BenchmarkAdmitDuringChanges is the start of a pod while 50 changes a second forbid something, and
// the kernel tracks 100,000 flows.
func BenchmarkAdmitDuringChanges(b *testing.B) {
	l := crowded(b, 100)
	l.track(100_000)
	set := func(name string, number int32) {
		l.p.mu.Lock()
		defer l.p.mu.Unlock()
		o := &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name},
			Spec: networkingv1.NetworkPolicySpec{PodSelector: app(50), Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "203.0.0.0/16"}}},
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To(intstr.FromInt32(number))}},
			}}},
		}
		l.p.state.SetPolicy(o)
		l.p.signal()
	}
	set("always", 80) // allows the flows
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := int32(1000); ; i++ {
			set("stricter", i)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	var took []time.Duration
	next := 10_000
	for b.Loop() {
		next++
		began := time.Now()
		if err := l.p.Admit(b.Context(), benchPod(next), benchAddresses(next)); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")

	// Until flows that are forbidden are gone.
	before := l.flows()
	began := time.Now()
	set("always", 81)
	for l.flows() == before {
		<-l.did
	}
	b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-cut")
	close(stop)
	<-stopped
}

// flows is how many the kernel tracks.
func (l *live) flows() (count string) {
	return l.Run("cat /proc/sys/net/netfilter/nf_conntrack_count")
}
