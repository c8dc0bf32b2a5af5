package proxy

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// BenchmarkChangeFromAPI is from the update of an EndpointSlice in the API to the rule in force, among Services
// with ten endpoints each. It also says how much memory the proxy takes, without the informers' objects.
func BenchmarkChangeFromAPI(b *testing.B) {
	slog.SetLogLoggerLevel(slog.LevelError)
	for _, count := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			api := fake.NewClientset()
			name, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
			slice := func(i, skip int) *discoveryv1.EndpointSlice {
				s := &discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{
						Name: fmt.Sprintf("web-%d-x", i), Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("web-%d", i)},
					},
					AddressType: discoveryv1.AddressTypeIPv4,
					Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
				}
				for e := skip; e < 10; e++ {
					n := i*10 + e
					s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("11.%d.%d.%d", n>>16, n>>8&255, n&255)}})
				}
				return s
			}
			for i := range count {
				ip := fmt.Sprintf("10.96.%d.%d", (i+1)>>8, (i+1)&255)
				service := &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Namespace: "default"},
					Spec: corev1.ServiceSpec{
						Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
						Ports: []corev1.ServicePort{{Name: name, Protocol: protocol, Port: 80}},
					},
				}
				if err := api.Tracker().Add(service); err != nil {
					b.Fatal(err)
				}
				if err := api.Tracker().Add(slice(i, 0)); err != nil {
					b.Fatal(err)
				}
			}
			c := &testCluster{Node: testnet.New(b), t: b, api: api, did: make(chan struct{}, 1)}
			before := heap()
			c.run(nil)
			<-c.did
			held := heap() - before
			var took []time.Duration
			skip := 0
			for b.Loop() {
				skip = 1 - skip
				s := slice(count/2, skip)
				began := time.Now()
				if _, err := api.DiscoveryV1().EndpointSlices("default").Update(b.Context(), s, metav1.UpdateOptions{}); err != nil {
					b.Fatal(err)
				}
				<-c.did
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(held)/(1<<20), "MiB")
		})
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
