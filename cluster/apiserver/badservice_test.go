package apiserver

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// What makes no sense of a Service is refused with a reason, and takes nothing: the good Service
// afterwards gets its port and its address.
func TestBadServices(t *testing.T) {
	client := admin(t)
	services := client.CoreV1().Services(namespace(t, client))
	service := func(name string, change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
		}
		if change != nil {
			change(s)
		}
		return s
	}
	const address, free, port, freePort = "10.96.77.7", "10.96.77.8", 31777, 31778
	taken := service("taken", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Ports[0].NodePort = address, port })
	if _, err := services.Create(t.Context(), taken, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*corev1.Service)
		says   string
	}{
		"a node port that another has": {func(s *corev1.Service) { s.Spec.Ports[0].NodePort = port }, "provided port is already allocated"},
		"a node port twice": {func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80, NodePort: freePort}, {Name: "b", Port: 81, NodePort: freePort}}
		}, "provided port is already allocated"},
		"a node port below the range": {func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort = 29999
		}, "provided port is not in the valid range"},
		"a node port above the range": {func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort = 32768
		}, "provided port is not in the valid range"},
		"an address that another has":     {func(s *corev1.Service) { s.Spec.ClusterIP = address }, "provided IP is already allocated"},
		"an address outside of the range": {func(s *corev1.Service) { s.Spec.ClusterIP = "192.0.2.7" }, "does not match the current range"},
		"the network's own address":       {func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.0" }, "does not match the current range"},
		"an address of loopback":          {func(s *corev1.Service) { s.Spec.ClusterIP = "127.0.0.1" }, "does not match the current range"},
		"an address of the other family":  {func(s *corev1.Service) { s.Spec.ClusterIP = "2001:db8::7" }, ""},
		"an address with leading zeros":   {func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.077.010" }, "Invalid value"},
		"no address at all":               {func(s *corev1.Service) { s.Spec.ClusterIP = "web" }, "Invalid value"},
		"an external address of loopback": {func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"127.0.0.1"}
		}, "may not be in the loopback range"},
		"an external address of the link": {func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"169.254.169.254"}
		}, "may not be in the link-local range"},
		"an external name with spaces": {func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "a b"
		}, "Invalid value"},
		"capitals":                  {func(s *corev1.Service) { s.Name = "Web" }, "metadata.name: Invalid value"},
		"a name of 64 characters":   {func(s *corev1.Service) { s.Name = strings.Repeat("x", 64) }, "metadata.name: Invalid value"},
		"capitals in a port's name": {func(s *corev1.Service) { s.Spec.Ports[0].Name = "HTTP" }, "Invalid value"},
		"no port":                   {func(s *corev1.Service) { s.Spec.Ports = nil }, "spec.ports: Required value"},
		"a port above 65535":        {func(s *corev1.Service) { s.Spec.Ports[0].Port = 65536 }, "Invalid value"},
		"sources that are no network": {func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"lan"}
		}, "Invalid value"},
		"an affinity of more than a day": {func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP,
				&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](86401)}}
		}, "Invalid value"},
		"a port for health checks out of range": {func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer,
				corev1.ServiceExternalTrafficPolicyLocal, 80
		}, "provided port is not in the valid range"},
	} {
		_, err := services.Create(t.Context(), service("bad", test.change), metav1.CreateOptions{})
		// Upstream calls that of health checks an internal error.
		if !apierrors.IsInvalid(err) && !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := service("good", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Ports[0].NodePort = free, freePort })
	if s, err := services.Create(t.Context(), good, metav1.CreateOptions{}); err != nil || s.Spec.ClusterIP != free ||
		s.Spec.Ports[0].NodePort != freePort {
		t.Errorf("a good Service: %+v, %v", s, err)
	}
}

// Endpoints may not lead to what only the node itself reaches, or to no machine.
func TestBadEndpoints(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	create := func(name, ip string) error {
		kind := discoveryv1.AddressTypeIPv4
		if strings.Contains(ip, ":") {
			kind = discoveryv1.AddressTypeIPv6
		}
		_, err := client.DiscoveryV1().EndpointSlices(ns).Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name}, AddressType: kind, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}},
		}, metav1.CreateOptions{})
		return err
	}
	old := func(name, ip string) error {
		//lint:ignore SA1019 they are served
		_, err := client.CoreV1().Endpoints(ns).Create(t.Context(), &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			//lint:ignore SA1019 as above
			Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: ip}}, Ports: []corev1.EndpointPort{{Port: 80}}}},
		}, metav1.CreateOptions{})
		return err
	}
	for n, test := range []struct{ ip, says string }{
		{"127.0.0.1", "loopback range"},
		{"127.255.0.9", "loopback range"},
		{"::1", "loopback range"},
		{"169.254.169.254", "link-local range"},
		{"fe80::1", "link-local range"},
		{"224.0.0.1", "link-local multicast range"},
		{"ff02::1", "link-local multicast range"},
		{"0.0.0.0", "unspecified"},
		{"::", "unspecified"},
		{"web", "Invalid value"},
		{"::ffff:127.0.0.1", ""},
	} {
		for kind, make := range map[string]func(name, ip string) error{"EndpointSlice": create, "Endpoints": old} {
			if err := make(fmt.Sprintf("bad-%d", n), test.ip); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s of %s: %v", kind, test.ip, err)
			}
		}
	}
	if err := create("good", "192.0.2.7"); err != nil {
		t.Errorf("a good EndpointSlice: %v", err)
	}
	if err := old("good", "192.0.2.7"); err != nil {
		t.Errorf("good Endpoints: %v", err)
	}
}

// Policies with networks that are none are refused; ones with thousands of ranges are stored, and
// package compile bounds what becomes of them.
func TestBadPolicies(t *testing.T) {
	client := admin(t)
	policies := client.NetworkingV1().NetworkPolicies(namespace(t, client))
	create := func(name string, blocks ...networkingv1.IPBlock) error {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		rule := networkingv1.NetworkPolicyIngressRule{}
		for _, b := range blocks {
			rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{IPBlock: &b})
		}
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{rule}
		_, err := policies.Create(t.Context(), p, metav1.CreateOptions{})
		return err
	}
	for name, block := range map[string]networkingv1.IPBlock{
		"no network":                     {CIDR: "lan"},
		"an address":                     {CIDR: "192.0.2.7"},
		"too many bits":                  {CIDR: "192.0.2.0/33"},
		"nothing":                        {},
		"an exception outside":           {CIDR: "192.0.2.0/24", Except: []string{"198.51.100.0/24"}},
		"an exception of all of it":      {CIDR: "192.0.2.0/24", Except: []string{"192.0.2.0/24"}},
		"an exception that is none":      {CIDR: "192.0.2.0/24", Except: []string{"x"}},
		"an exception of another family": {CIDR: "192.0.2.0/24", Except: []string{"2001:db8::/64"}},
	} {
		if err := create("bad", block); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var many []networkingv1.IPBlock
	for n := range 5000 {
		many = append(many, networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", n/250, n%250)})
	}
	if err := create("many", many...); err != nil {
		t.Errorf("5,000 ranges: %v", err)
	}
}
