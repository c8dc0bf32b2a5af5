package loadbalancer

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
)

// api is one test's view of the API.
type api struct {
	*testing.T
	*apitest.Server
}

// run runs f and a controller with a pool; without ranges it gives nodes' addresses.
func run(t *testing.T, o Options, ranges []string, f func(api)) {
	t.Helper()
	var err error
	if o.Pool, err = loadbalancer.ParsePool(ranges); err != nil {
		t.Fatal(err)
	}
	make := func(set *client.Set) *frame.Controller { return New(set, o) }
	apitest.Ours(make).As("service-controller").Run(t, func(t *testing.T, s *apitest.Server) { f(api{t, s}) })
}

// Families of Services.
var (
	v4   = []corev1.IPFamily{corev1.IPv4Protocol}
	v6   = []corev1.IPFamily{corev1.IPv6Protocol}
	dual = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
)

// balancer is a Service of one family with port 80.
func balancer(name string, families []corev1.IPFamily, change ...func(*corev1.Service)) *corev1.Service {
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: apitest.Namespace}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, IPFamilies: families, IPFamilyPolicy: &policy,
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}}
	for _, f := range change {
		f(s)
	}
	return s
}

func wanting(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerIP = ip }
}

func having(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func preferring(s *corev1.Service) {
	*s.Spec.IPFamilyPolicy = corev1.IPFamilyPolicyPreferDualStack
}

func port(number int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port = number }
}

// add creates Services, a second apart, and lets the controller act on each.
func (a api) add(services ...*corev1.Service) {
	a.Helper()
	for _, s := range services {
		if _, err := a.Kube.CoreV1().Services(s.Namespace).Create(context.Background(), s, metav1.CreateOptions{}); err != nil {
			a.Fatal(err)
		}
		a.Pass(time.Second)
	}
}

func (a api) change(name string, f func(*corev1.Service)) {
	a.Helper()
	all := a.Kube.CoreV1().Services(apitest.Namespace)
	s, err := all.Get(context.Background(), name, metav1.GetOptions{})
	if err == nil {
		f(s)
		_, err = all.Update(context.Background(), s, metav1.UpdateOptions{})
	}
	if err != nil {
		a.Fatal(err)
	}
	a.Settle()
}

func (a api) remove(name string) {
	a.Helper()
	if err := a.Kube.CoreV1().Services(apitest.Namespace).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		a.Fatal(err)
	}
	a.Settle()
}

// has returns a Service's addresses, separated by spaces.
func (a api) has(name string) string {
	a.Helper()
	s, err := a.Kube.CoreV1().Services(apitest.Namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		a.Fatal(err)
	}
	var ips []string
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		ips = append(ips, ingress.IP)
	}
	return strings.Join(ips, " ")
}

// want says what Services have, as "name" and "address address".
func (a api) want(wants ...string) {
	a.Helper()
	for i := 0; i < len(wants); i += 2 {
		if got := a.has(wants[i]); got != wants[i+1] {
			a.Errorf("%s has %q, want %q", wants[i], got, wants[i+1])
		}
	}
}

// told says that exactly one Event has this reason and text.
func (a api) told(reason, text string) {
	a.Helper()
	a.Pass(2 * time.Second)
	n := 0
	for _, e := range a.Events(a.T) {
		if strings.Contains(e, " "+reason+" ") && strings.Contains(e, text) {
			n++
		}
	}
	if n != 1 {
		a.Errorf("%d Events say %s %q, want 1, of %q", n, reason, text, a.Events(a.T))
	}
}

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
			pool: []string{"10.0.0.1", "fd00::1"}, services: []*corev1.Service{balancer("a", []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol})},
			want: []string{"fd00::1 10.0.0.1"},
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
			pool: []string{"10.0.0.1-10.0.0.9"}, services: []*corev1.Service{balancer("a", v4, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })},
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

// Another controller that gives the same Services addresses is told to the user and not fought. One
// change is corrected.
func TestAnotherControllerIsNotFought(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1-10.0.0.9"}, func(a api) {
		a.add(balancer("a", v4), balancer("b", v4))
		overwrite := func() {
			s, err := a.Kube.CoreV1().Services(apitest.Namespace).Get(context.Background(), "a", metav1.GetOptions{})
			if err == nil {
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}
				_, err = a.Kube.CoreV1().Services(apitest.Namespace).UpdateStatus(context.Background(), s, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			a.Settle()
		}
		for range mostUndone {
			overwrite()
			a.want("a", "10.0.0.1")
		}
		a.Writes()
		for range 10 {
			overwrite()
			a.want("a", "192.0.2.9")
		}
		if n := a.Writes(); len(n) != 0 {
			t.Errorf("it still writes %v", n)
		}
		a.told(reasonOther, "--load-balancer-cidr none")
		a.want("b", "10.0.0.2") // nothing is wrong with others
		a.change("a", wanting("10.0.0.7"))
		a.want("a", "10.0.0.7") // a wish is followed
	})
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

// One Service whose status cannot be written does not keep others from theirs, and no address is
// given twice.
func TestAFailedWriteIsRepeated(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1-10.0.0.9"}, func(a api) {
		failed := 0
		a.Refuse(func(_, resource string) error {
			if resource == "services/status" && failed == 0 {
				failed++
				return errors.New("no")
			}
			return nil
		})
		a.add(balancer("a", v4), balancer("b", v4))
		a.Pass(time.Minute)
		a.want("a", "10.0.0.1", "b", "10.0.0.2")
		if failed != 1 {
			t.Error("nothing has failed")
		}
	})
}

// Writes that fail are no other controller's work.
func TestFailedWritesAreNoOtherController(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1"}, func(a api) {
		a.add(balancer("a", v4))
		a.want("a", "10.0.0.1")
		failed := 0
		a.Refuse(func(_, resource string) error {
			if resource == "services/status" && failed <= mostUndone {
				failed++
				return errors.New("no")
			}
			return nil
		})
		s, err := a.Kube.CoreV1().Services(apitest.Namespace).Get(context.Background(), "a", metav1.GetOptions{})
		if err == nil {
			s.Status.LoadBalancer.Ingress = nil
			_, err = a.Kube.CoreV1().Services(apitest.Namespace).UpdateStatus(context.Background(), s, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		a.Pass(time.Minute)
		if failed <= mostUndone {
			t.Errorf("%d writes have failed", failed)
		}
		a.want("a", "10.0.0.1")
	})
}

// The writer may die after any write.
func TestCrashesGiveNoAddressTwice(t *testing.T) {
	run(t, Options{}, []string{"10.0.0.1-10.0.0.3"}, func(a api) {
		for i, name := range []string{"a", "b", "c"} {
			a.CrashAfter(1)
			a.add(balancer(name, v4))
			if !a.Crashed() {
				t.Fatal("nothing was written")
			}
			a.Restart()
			a.want(name, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}[i])
		}
	})
}

// node is a node with these addresses.
func (a api) node(name string, ips ...string) {
	a.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	if _, err := a.Kube.CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{}); err != nil {
		a.Fatal(err)
	}
	a.Settle()
}

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
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4), balancer("b", v4, port(81))}, want: []string{"192.0.2.1", "192.0.2.1"},
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
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4, nodePort(30080)), balancer("b", v4, port(30080))}, want: []string{"", ""},
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
			node: []string{"127.0.0.1"}, services: []*corev1.Service{balancer("a", v4)}, want: []string{""}, reason: reasonNoNode, text: "--load-balancer-cidr",
		},
		"both or none": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", dual)}, want: []string{""}, reason: reasonNoNode, text: "--load-balancer-cidr",
		},
		"only one that is asked for": {
			node: []string{"192.0.2.1", "192.0.2.2"}, services: []*corev1.Service{balancer("a", v4, wanting("192.0.2.2")), balancer("b", v4, wanting("192.0.2.1"))},
			want: []string{"192.0.2.2", "192.0.2.1"},
		},
		"no other one": {
			node: []string{"192.0.2.1"}, services: []*corev1.Service{balancer("a", v4, wanting("192.0.2.9"))}, want: []string{""},
			reason: reasonOutside, text: "192.0.2.9 is not an address of a node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{
				Reserved: map[int32]string{6443: "the API server"},
				Busy:     func(at netip.AddrPort, _ corev1.Protocol) bool { return at.Port() == 22 },
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
	o := Options{Busy: func(at netip.AddrPort, _ corev1.Protocol) bool { return at.Port() == 80 && busy.Load() }}
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

// Users change a Service's ports when it has its address. The new ones are no more its own than those
// of a new Service: it loses the address rather than that another loses the port.
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
			o := Options{Busy: func(at netip.AddrPort, _ corev1.Protocol) bool { return at.Port() == 22 }}
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

// The status says which ports were given, so that the proxy routes no others. It does so also when the
// controller no longer looks at the Service.
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
