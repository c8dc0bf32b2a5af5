package testkit

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Services are so many Services, with ten endpoints each, for measurements.
func Services(count int) (services []*corev1.Service, slices []*discoveryv1.EndpointSlice) {
	for i := range count {
		ip := netip.AddrFrom4([4]byte{10, 96 + byte((i+1)>>16), byte((i + 1) >> 8), byte(i + 1)}).String()
		services = append(services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Namespace: "default"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				SessionAffinity: corev1.ServiceAffinityNone,
				Ports:           []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
			},
		})
		slices = append(slices, Endpoints(i, 0))
	}
	return services, slices
}

// Endpoints are the ten of a Service, without the first ones.
func Endpoints(service, without int) *discoveryv1.EndpointSlice {
	name, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("web-%d-x", service), Namespace: "default",
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("web-%d", service)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
	for e := without; e < 10; e++ {
		n := service*10 + e
		s.Endpoints = append(s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}).String()}})
	}
	return s
}
