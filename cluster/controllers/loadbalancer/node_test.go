package loadbalancer

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/loadbalancer/freeports"
)

func TestServicesShareTheNodesAddresses(t *testing.T) {
	nodePort := func(number int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, number
		}
	}
	for name, test := range map[string]struct {
		node         []string
		services     []*corev1.Service
		want         []string
		reason, text string
	}{
		"by their ports": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4), balancer("b", v4, port(81))},
			want: []string{"192.0.2.1", "192.0.2.1"},
		},
		"of both families": {
			node: []string{"192.0.2.1", "2001:db8::1"}, services: []*corev1.Service{balancer("a", dual), balancer("b", v6, port(81))},
			want: []string{"192.0.2.1 2001:db8::1", "2001:db8::1"},
		},
		"the first keeps a port": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4), balancer("b", v4)}, want: []string{"192.0.2.1", ""},
			reason: reasonPort, text: "port 80/TCP of 192.0.2.1 belongs to Service " + apitest.Namespace + "/a",
		},
		"not another protocol's": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4), balancer("b", v4, func(s *corev1.Service) {
				s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
			})}, want: []string{"192.0.2.1", "192.0.2.1"},
		},
		"no node port of another": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4, nodePort(30080)), balancer("b", v4, port(30080))},
			want:   []string{"", ""},
			reason: reasonPort, text: "is a node port of Service " + apitest.Namespace + "/a",
		},
		"no port of the node": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4, port(6443))}, want: []string{""},
			reason: reasonPort, text: "port 6443/TCP of 192.0.2.1 belongs to the API server",
		},
		"no port that a process has": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4, port(22))}, want: []string{""},
			reason: reasonPort, text: "is used by a process of the node",
		},
		"no loopback address": {
			node: []string{"127.0.0.1"}, services: []*corev1.Service{balancer("a", v4)}, want: []string{""}, reason: reasonNoNode,
			text: "--load-balancer-cidr",
		},
		"both or none": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", dual)}, want: []string{""}, reason: reasonNoNode,
			text: "--load-balancer-cidr",
		},
		"only one that is asked for": {
			node:     []string{"192.0.2.1", "192.0.2.2"},
			services: []*corev1.Service{balancer("a", v4, wanting("192.0.2.2")), balancer("b", v4, wanting("192.0.2.1"))},
			want:     []string{"192.0.2.2", "192.0.2.1"},
		},
		"no other one": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4, wanting("192.0.2.9"))}, want: []string{""},
			reason: reasonOutside, text: "192.0.2.9 is not an address of a node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{
				Reserved: map[int32]string{6443: "the API server"},
				Busy:     func(at netip.AddrPort, _ corev1.Protocol) (busy, local bool) { return at.Port() == 22, true },
			}
			run(t, o, nil, func(a api) {
				a.node("here", test.node...)
				a.add(test.services...)
				for i, s := range test.services {
					a.want(s.Name, test.want[i])
				}
				if test.reason != "" {
					a.told(test.reason, test.text)
				}
				a.Writes()
				a.Restart()
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

// A port goes to the Service that waits when it is free; one that a process has is looked at again.
func TestPortsOfNodesAreReleased(t *testing.T) {
	var busy atomic.Bool
	o := Options{Busy: func(at netip.AddrPort, _ corev1.Protocol) (bool, bool) { return at.Port() == 80 && busy.Load(), true }}
	run(t, o, nil, func(a api) {
		a.node("here", "192.0.2.1")
		a.add(balancer("a", v4), balancer("b", v4))
		a.want("a", "192.0.2.1", "b", "")
		a.change("a", port(81))
		a.want("a", "192.0.2.1", "b", "192.0.2.1")
		a.remove("b")
		busy.Store(true)
		a.add(balancer("c", v4))
		a.want("c", "")
		busy.Store(false)
		a.Pass(again)
		a.want("c", "192.0.2.1")
		// What it has, it keeps: a process that comes later does not take it away.
		busy.Store(true)
		a.Restart()
		a.want("c", "192.0.2.1")
	})
}

// Users change a Service's ports when it has its address. The new ones are no more its own than
// those of a new Service: it loses the address rather than that another loses the port.
func TestPortsAreNotTakenLater(t *testing.T) {
	for name, test := range map[string]struct {
		attack       func(api)
		want         []string // what Services a and b have then
		reason, text string
	}{
		"a process's": {
			attack: func(a api) { a.change("a", port(22)) }, want: []string{"", "192.0.2.1"},
			reason: reasonPort, text: "port 22/TCP of 192.0.2.1 is used by a process of the node",
		},
		"a process's, with its own": {
			attack: func(a api) {
				a.change("a", func(s *corev1.Service) {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "ssh", Protocol: corev1.ProtocolTCP, Port: 22})
				})
			}, want: []string{"", "192.0.2.1"},
			reason: reasonPort, text: "port 22/TCP of 192.0.2.1 is used by a process of the node",
		},
		"a younger Service's": {
			attack: func(a api) { a.change("a", port(81)) }, want: []string{"", "192.0.2.1"},
			reason: reasonPort, text: "port 81/TCP of 192.0.2.1 belongs to Service " + apitest.Namespace + "/b",
		},
		"one of a Service that is left alone": {
			attack: func(a api) {
				a.change("b", func(s *corev1.Service) { s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"} })
				a.change("a", port(81))
			}, want: []string{"", "192.0.2.1"},
			reason: reasonPort, text: "port 81/TCP of 192.0.2.1 belongs to Service " + apitest.Namespace + "/b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Busy: func(at netip.AddrPort, _ corev1.Protocol) (busy, local bool) { return at.Port() == 22, true }}
			run(t, o, nil, func(a api) {
				a.node("here", "192.0.2.1")
				a.add(balancer("a", v4), balancer("b", v4, port(81)))
				a.want("a", "192.0.2.1", "b", "192.0.2.1")
				test.attack(a)
				a.want("a", test.want[0], "b", test.want[1])
				a.told(test.reason, test.text)
				a.change("a", func(s *corev1.Service) { // positive control: a port that is free
					s.Spec.Ports = s.Spec.Ports[:1]
					s.Spec.Ports[0].Port = 82
				})
				a.want("a", "192.0.2.1")
			})
		})
	}
}

// The status says which ports were given, so that the proxy routes no others. It does so also when
// the controller no longer looks at the Service.
func TestStatusHasThePortsOfNodes(t *testing.T) {
	run(t, Options{}, nil, func(a api) {
		given := func(want int32) {
			t.Helper()
			s, err := a.Kube.CoreV1().Services(apitest.Namespace).Get(context.Background(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			in := s.Status.LoadBalancer.Ingress
			if len(in) != 1 || len(in[0].Ports) != 1 || in[0].Ports[0] != (corev1.PortStatus{Port: want, Protocol: corev1.ProtocolTCP}) {
				t.Errorf("the status has %+v, want port %d", in, want)
			}
		}
		a.node("here", "192.0.2.1")
		a.add(balancer("a", v4))
		given(80)
		a.change("a", port(81))
		given(81)
		a.change("a", func(s *corev1.Service) { s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"} })
		a.change("a", port(22))
		given(81)
	})
}

// The addresses follow the nodes.
func TestServicesHaveTheAddressesOfReadyNodes(t *testing.T) {
	run(t, Options{}, nil, func(a api) {
		a.add(balancer("a", v4))
		a.want("a", "")
		a.node("one", "192.0.2.1")
		a.node("two", "192.0.2.2")
		a.want("a", "192.0.2.1 192.0.2.2")
		n, err := a.Kube.CoreV1().Nodes().Get(context.Background(), "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Conditions[0].Status = corev1.ConditionFalse
		if _, err := a.Kube.CoreV1().Nodes().UpdateStatus(context.Background(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		a.Settle()
		a.want("a", "192.0.2.2")
	})
}

// Regression: the port of a process on another node than the controller's counted as free, so that
// any user could take the connections to its sshd. The node itself says what is free.
func TestAttackPortsOfOtherNodes(t *testing.T) {
	local := netip.MustParseAddr("192.0.2.1")
	o := Options{Busy: func(at netip.AddrPort, _ corev1.Protocol) (busy, isLocal bool) { return false, at.Addr() == local }}
	run(t, o, nil, func(a api) {
		a.node("here", local.String())
		a.node("there", "192.0.2.2")
		a.add(balancer("both", v4), balancer("ssh", v4, port(22), wanting("192.0.2.2")))
		a.want("both", "") // it waits for an answer
		a.want("ssh", "")
		a.answers("there", "22/TCP=used,80/TCP=free")
		a.want("both", "192.0.2.1 192.0.2.2")
		a.want("ssh", "")
		a.told(reasonPort, "port 22/TCP of 192.0.2.2 is used by a process of the node")
		a.answers("there", "22/TCP=free")
		a.want("ssh", "192.0.2.2") // the attack succeeds if the node says nothing of the process
		a.answers("there", "")
		a.want("both", "192.0.2.1 192.0.2.2")
		a.want("ssh", "192.0.2.2")

		a.remove("ssh")

		// A node that was away comes back, and another port is asked for. What a Service has stays
		// meanwhile.
		a.ready("there", false)
		a.want("both", "192.0.2.1")
		a.ready("there", true)
		a.want("both", "192.0.2.1")
		a.answers("there", "80/TCP=free")
		a.want("both", "192.0.2.1 192.0.2.2")
		a.answers("there", "")
		a.change("both", func(s *corev1.Service) { s.Spec.Ports[0].Port = 8080 })
		a.want("both", "192.0.2.1 192.0.2.2")
		a.add(balancer("thief", v4, wanting("192.0.2.2")))
		a.answers("there", "80/TCP=free")
		a.want("thief", "") // as long as the other may keep its port
		a.answers("there", "8080/TCP=free,80/TCP=free")
		a.want("both", "192.0.2.1 192.0.2.2")
		a.want("thief", "192.0.2.2")

		// Nodes that do not answer are left out.
		a.add(balancer("third", v4, port(81)), balancer("fourth", v4, port(82), wanting("192.0.2.2")))
		a.want("third", "")
		time.Sleep(patience + time.Second)
		a.Settle()
		a.want("third", "192.0.2.1")
		a.want("fourth", "")
		a.told(reasonPort, "the node of 192.0.2.2 does not say")
		a.answers("there", "81/TCP=free")
		a.want("third", "192.0.2.1 192.0.2.2")
	})
}

// ready sets the condition of a node.
func (a api) ready(name string, is bool) {
	a.Helper()
	n, err := a.Kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		a.Fatal(err)
	}
	n.Status.Conditions[0].Status = map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[is]
	if _, err := a.Kube.CoreV1().Nodes().UpdateStatus(context.Background(), n, metav1.UpdateOptions{}); err != nil {
		a.Fatal(err)
	}
	a.Settle()
}

// answers makes a node say which ports are free.
func (a api) answers(name, text string) {
	a.Helper()
	n, err := a.Kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		a.Fatal(err)
	}
	n.Annotations = map[string]string{freeports.Annotation: text}
	if _, err := a.Kube.CoreV1().Nodes().Update(context.Background(), n, metav1.UpdateOptions{}); err != nil {
		a.Fatal(err)
	}
	a.Settle()
}
