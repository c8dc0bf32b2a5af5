package loadbalancer

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

func TestServicesGetAddresses(t *testing.T) {
	for name, test := range map[string]struct {
		pool     []string
		services []*corev1.Service
		want     []string // the addresses of each
		reason   string   // of an Event, and its text
		text     string
	}{
		"each its own": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4), balancer("b", v4)},
			want: []string{"10.0.0.1", "10.0.0.2"},
		},
		"over several ranges": {
			pool: []string{"10.0.0.1", "10.0.0.9"}, services: []*corev1.Service{balancer("a", v4), balancer("b", v4)},
			want: []string{"10.0.0.1", "10.0.0.9"},
		},
		"of both families": {
			pool: []string{"10.0.0.1-10.0.0.9", "fd00::1-fd00::9"}, services: []*corev1.Service{balancer("a", dual), balancer("b", v6)},
			want: []string{"10.0.0.1 fd00::1", "fd00::2"},
		},
		"IPv6 first": {
			pool:     []string{"10.0.0.1", "fd00::1"},
			services: []*corev1.Service{balancer("a", []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol})},
			want:     []string{"fd00::1 10.0.0.1"},
		},
		"exhausted": {
			pool: []string{"10.0.0.1-10.0.0.2"}, services: []*corev1.Service{balancer("a", v4), balancer("b", v4), balancer("c", v4)},
			want: []string{"10.0.0.1", "10.0.0.2", ""}, reason: reasonExhausted, text: "10.0.0.1-10.0.0.2",
		},
		"not of that family": {
			pool: []string{"10.0.0.1-10.0.0.2"}, services: []*corev1.Service{balancer("a", v6)},
			want: []string{""}, reason: reasonNoFamily, text: "no IPv6 addresses",
		},
		"both or none": {
			pool: []string{"10.0.0.1-10.0.0.2", "fd00::1"}, services: []*corev1.Service{balancer("a", v6), balancer("b", dual), balancer("c", v4)},
			want: []string{"fd00::1", "", "10.0.0.1"}, reason: reasonExhausted, text: "all IPv6",
		},
		"both preferred, one in the pool": {
			pool: []string{"10.0.0.1"}, services: []*corev1.Service{balancer("a", dual, preferring)}, want: []string{"10.0.0.1"},
		},
		"both preferred, one exhausted": {
			pool: []string{"10.0.0.1", "fd00::1"}, services: []*corev1.Service{balancer("a", v4), balancer("b", dual, preferring)},
			want: []string{"10.0.0.1", "fd00::1"}, reason: reasonExhausted, text: "all IPv4",
		},
		"the one that is asked for": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, wanting("10.0.0.7")), balancer("b", v4)},
			want: []string{"10.0.0.7", "10.0.0.1"},
		},
		"one that is asked for, and any of the other family": {
			pool: []string{"10.0.0.1-10.0.0.9", "fd00::1"}, services: []*corev1.Service{balancer("a", dual, wanting("10.0.0.7"))},
			want: []string{"10.0.0.7 fd00::1"},
		},
		"one outside of the pool": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, wanting("10.0.0.10"))},
			want: []string{""}, reason: reasonOutside, text: "10.0.0.10 is not in the pool (10.0.0.1-10.0.0.9)",
		},
		"one that is taken": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4), balancer("b", v4, wanting("10.0.0.1"))},
			want: []string{"10.0.0.1", ""}, reason: reasonTaken, text: "belongs to Service " + apitest.Namespace + "/a",
		},
		"no address": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, wanting("any"))},
			want: []string{""}, reason: reasonInvalid, text: `"any" is no IP address`,
		},
		"one of another family": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, wanting("fd00::1"))},
			want: []string{""}, reason: reasonInvalid, text: "spec.ipFamilies",
		},
		"what it has already": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, having("10.0.0.5")), balancer("b", v4)},
			want: []string{"10.0.0.5", "10.0.0.1"},
		},
		"another than it has outside of the pool": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, having("192.0.2.1"))}, want: []string{"10.0.0.1"},
		},
		"another than an older one has": {
			pool:     []string{"10.0.0.1-10.0.0.9"},
			services: []*corev1.Service{balancer("a", v4, having("10.0.0.5")), balancer("b", v4, having("10.0.0.5"))},
			want:     []string{"10.0.0.5", "10.0.0.1"},
		},
		"none with a class, whose address stays": {
			pool: []string{"10.0.0.1-10.0.0.9"},
			services: []*corev1.Service{balancer("a", v4, having("10.0.0.1"), func(s *corev1.Service) {
				class := "example.com/other"
				s.Spec.LoadBalancerClass = &class
			}), balancer("b", v4)},
			want: []string{"10.0.0.1", "10.0.0.2"},
		},
		"none that another controller has": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, func(s *corev1.Service) {
				s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
			})}, want: []string{""},
		},
		"no Service of another type": {
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeNodePort
			})},
			want: []string{""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, Options{}, test.pool, func(a api) {
				a.add(test.services...)
				for i, s := range test.services {
					a.want(s.Name, test.want[i])
				}
				if test.reason != "" {
					a.told(test.reason, test.text)
				}
				a.Writes()
				a.Restart() // the status is the record
				for i, s := range test.services {
					a.want(s.Name, test.want[i])
				}
				if again := a.Writes(); len(again) != 0 {
					t.Errorf("a restart writes %v", again)
				}
			})
		})
	}
}

// Addresses are virtual ones for the proxy.
func TestAddressesHaveAMode(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1"}, func(a api) {
		a.add(balancer("a", v4))
		s, err := a.Kube.CoreV1().Services(apitest.Namespace).Get(context.Background(), "a", metav1.GetOptions{})
		if err != nil || len(s.Status.LoadBalancer.Ingress) != 1 || *s.Status.LoadBalancer.Ingress[0].IPMode != corev1.LoadBalancerIPModeVIP {
			t.Errorf("%+v, %v", s.Status, err)
		}
	})
}

// Who waits gets what is free, the oldest first.
func TestAddressesAreReleased(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1"}, func(a api) {
		a.add(balancer("a", v4), balancer("b", v4), balancer("c", v4))
		a.want("a", "10.0.0.1", "b", "", "c", "")
		a.remove("a")
		a.want("b", "10.0.0.1", "c", "")
		class := corev1.ServiceTypeClusterIP
		a.change("b", func(s *corev1.Service) { s.Spec.Type = class })
		a.want("c", "10.0.0.1")
	})
}

func TestARequestIsFollowedLater(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1-10.0.0.3"}, func(a api) {
		a.add(balancer("a", v4), balancer("b", v4, wanting("10.0.0.1")))
		a.want("a", "10.0.0.1", "b", "")
		a.change("a", wanting("10.0.0.2"))
		a.want("a", "10.0.0.2", "b", "10.0.0.1")
		a.change("a", wanting(""))
		a.want("a", "10.0.0.2")
	})
}

// A Service that is being deleted keeps its address until it is gone, and gets none.
func TestServicesThatAreDeleted(t *testing.T) {
	kept := func(s *corev1.Service) { s.Finalizers = []string{"example.com/wait"} }
	run(t, Options{}, []string{"10.0.0.1"}, func(a api) {
		a.add(balancer("a", v4, kept), balancer("b", v4))
		a.remove("a")
		a.want("a", "10.0.0.1", "b", "")
		a.change("a", func(s *corev1.Service) { s.Finalizers = nil })
		a.want("b", "10.0.0.1")
	})
}
