package certificates

import (
	"crypto/x509"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
)

// The authority of serving certificates is the API server's, too, and a node says itself which
// addresses it has.
func TestServingCertificatesAreForANodesOwnAddresses(t *testing.T) {
	reserved := Reserved{Hosts: []string{"kubernetes.default", "kubernetes.default.svc", "10.96.0.1", "192.0.2.1"}, Domain: "cluster.local"}
	reserved.Pods = []netip.Prefix{netip.MustParsePrefix("10.85.0.0/16"), netip.MustParsePrefix("fd85:c0ac:1e00::/48")}
	reserved.LoadBalancers = must(loadbalancer.ParsePool([]string{"192.0.2.240/28"}))
	serving := func(names, ips string) func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) {
		return func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			csr.Spec.SignerName = certificatesv1.KubeletServingSignerName
			csr.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
			r.DNSNames = strings.Fields(names)
			for _, ip := range strings.Fields(ips) {
				r.IPAddresses = append(r.IPAddresses, net.ParseIP(ip))
			}
		}
	}
	as := func(name string) func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) {
		return func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			serving(name, "")(csr, r)
			csr.Spec.Username, r.Subject.CommonName = "system:node:"+name, "system:node:"+name
		}
	}
	changed := func(further func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest),
	) func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) {
		return func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			serving("a", "192.0.2.10")(csr, r)
			further(csr, r)
		}
	}
	for _, c := range []struct {
		name     string
		change   func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)
		approved bool
	}{
		{"its name and addresses", serving("a", "192.0.2.10 2001:db8::10"), true},
		{"its address as IPv4 in IPv6", serving("", "::ffff:192.0.2.10"), true},
		{"an address that it does not have", serving("a", "192.0.2.11"), false},
		{"the API server's address, which it says it has", serving("a", "192.0.2.1"), false},
		{"another API server's address, which it says it has", serving("a", "192.0.2.50"), false},
		{"the kubernetes Service's name", serving("kubernetes.default.svc", ""), false},
		{"the name in other letters", serving("Kubernetes.Default.Svc.", ""), false},
		{"another node's address, which it says it has, too", serving("a", "192.0.2.20"), false},
		{"another node's name", serving("b", ""), false},
		{"loopback, which it says it has", serving("a", "127.0.0.1"), false},
		{"a link-local address, which it says it has", serving("a", "169.254.1.1"), false},
		{"a name that it does not have", serving("example.com", ""), false},
		{"a wildcard of Services' names, which it says it has", serving("*.default.svc", ""), false},
		{"a wildcard of other nodes' names, which it says it has", serving("*.example.com", ""), false},
		{"a Service's name, which it says it has", serving("hook.kube-system.svc", ""), false},
		{"a Service's address, which it says it has", serving("a", "10.96.0.77"), false},
		{"an address of a later network of Services", serving("a", "10.97.0.7"), false},
		{"a pod's address, which it says it has", serving("a", "10.85.3.7"), false},
		{"a pod's address of IPv6, which it says it has", serving("a", "fd85:c0ac:1e00:3::7"), false},
		{"a load balancer's address, which it says it has", serving("a", "192.0.2.241"), false},
		{"a node called as a Service", as("hook.kube-system.svc"), false},
		{"a node called as a Service, in full", as("hook.kube-system.svc.cluster.local"), false},
		{"a node called as a pod", as("1-2-3-4.default.pod.cluster.local"), false},
		{"a node called as the API server", as("kubernetes.default"), false},
		{"a node called as a Service's address", as("10.96.0.77"), false},
		{"a node with a domain", as("n.example.com"), true},
		{"its name, which another node says it has, too", as("n.example.com"), true},
		{"for another node", changed(func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			r.Subject.CommonName, r.DNSNames, r.IPAddresses = "system:node:b", []string{"b"}, nil
		}), false},
		{"by one who is no node", changed(func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			csr.Spec.Groups = []string{"system:authenticated"}
		}), false},
		{"by a node that does not exist", changed(func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			csr.Spec.Username, r.Subject.CommonName, r.DNSNames = "system:node:c", "system:node:c", []string{"c"}
		}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var approved atomic.Bool
			apitest.Ours(func(set *client.Set) *frame.Controller {
				decisions(set, func(csr *certificatesv1.CertificateSigningRequest) { approved.Store(true) })
				return NewApprover(set, set.Kube, reserved)
			}).As("certificate-controller").Run(t, func(t *testing.T, s *apitest.Server) {
				network := &networkingv1.ServiceCIDR{
					ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
					Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "10.97.0.0/28"}},
				}
				must(s.Kube.NetworkingV1().ServiceCIDRs().Create(ctx, network, metav1.CreateOptions{}))
				servers := &discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{
						Name: "kubernetes", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
					},
					AddressType: discoveryv1.AddressTypeIPv4,
					Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}, {Addresses: []string{"192.0.2.50"}}},
				}
				must(s.Kube.DiscoveryV1().EndpointSlices("default").Create(ctx, servers, metav1.CreateOptions{}))
				for name, addresses := range map[string]string{
					"a": "192.0.2.10 2001:db8::10 192.0.2.1 192.0.2.50 192.0.2.20 127.0.0.1 169.254.1.1 10.96.0.77 10.97.0.7 " +
						"10.85.3.7 fd85:c0ac:1e00:3::7 192.0.2.241 " +
						"*.default.svc *.example.com hook.kube-system.svc",
					"b":                    "192.0.2.20 n.example.com",
					"n.example.com":        "192.0.2.30",
					"hook.kube-system.svc": "192.0.2.31", "hook.kube-system.svc.cluster.local": "192.0.2.32",
					"1-2-3-4.default.pod.cluster.local": "192.0.2.33", "kubernetes.default": "192.0.2.34", "10.96.0.77": "192.0.2.35",
				} {
					must(s.Kube.CoreV1().Nodes().Create(ctx, nodeAt(name, strings.Fields(addresses)...), metav1.CreateOptions{}))
				}
				s.Settle()
				must(s.Kube.CertificatesV1().CertificateSigningRequests().Create(ctx, request(c.change), metav1.CreateOptions{}))
				s.Settle()
				if approved.Load() != c.approved {
					t.Errorf("approved: %t", approved.Load())
				}
			})
		})
	}
}

func nodeAt(name string, addresses ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return node
}

// An address that two nodes report is refused to both. The operator learns of it.
func TestAnAddressOfTwoNodesIsTold(t *testing.T) {
	var approved atomic.Bool
	apitest.Ours(func(set *client.Set) *frame.Controller {
		decisions(set, func(*certificatesv1.CertificateSigningRequest) { approved.Store(true) })
		return NewApprover(set, set.Kube, Reserved{Hosts: []string{"192.0.2.1"}})
	}).As("certificate-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		nodes := s.Kube.CoreV1().Nodes()
		must(nodes.Create(ctx, nodeAt("a", "192.0.2.10"), metav1.CreateOptions{}))
		other := must(nodes.Create(ctx, nodeAt("b", "192.0.2.10", "a"), metav1.CreateOptions{}))
		must(s.Kube.CertificatesV1().CertificateSigningRequests().Create(ctx,
			request(func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
				csr.Spec.SignerName = certificatesv1.KubeletServingSignerName
				csr.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
				r.DNSNames, r.IPAddresses = []string{"a"}, []net.IP{net.ParseIP("192.0.2.10")}
			}), metav1.CreateOptions{}))
		s.Pass(time.Minute)
		const want = "Warning ServingCertificateConflict No serving certificate for 192.0.2.10: node b reports that address, too"
		if events := s.Events(t); approved.Load() || len(events) == 0 || slices.ContainsFunc(events, func(e string) bool { return e != want }) {
			t.Errorf("approved: %t, events %q, want %q", approved.Load(), events, want)
		}
		other.Status.Addresses = nodeAt("b", "192.0.2.20", "a").Status.Addresses
		must(nodes.UpdateStatus(ctx, other, metav1.UpdateOptions{}))
		s.Pass(time.Hour)
		if !approved.Load() {
			t.Error("it is refused without the conflict")
		}
	})
}

// decisions hands f each request that is approved or denied.
func decisions(set *client.Set, f func(*certificatesv1.CertificateSigningRequest)) {
	set.Kube.(*fake.Clientset).PrependReactor("update", "certificatesigningrequests",
		func(action ktesting.Action) (bool, runtime.Object, error) {
			csr := action.(ktesting.UpdateActionImpl).Object.(*certificatesv1.CertificateSigningRequest)
			f(csr)
			return true, csr, nil
		})
}

// A bootstrap token cannot take over an existing node. Its request is denied at once: one that
// waits would be approved when the Node is deleted.
func TestATokenTakesOverNoNode(t *testing.T) {
	for name, want := range map[string]certificatesv1.RequestConditionType{
		"a": certificatesv1.CertificateDenied, "new": certificatesv1.CertificateApproved, "unseen": certificatesv1.CertificateDenied,
	} {
		t.Run(name, func(t *testing.T) {
			var decided []certificatesv1.CertificateSigningRequestCondition
			apitest.Ours(func(set *client.Set) *frame.Controller {
				decisions(set, func(csr *certificatesv1.CertificateSigningRequest) { decided = csr.Status.Conditions })
				kube := set.Kube.(*fake.Clientset)
				kube.PrependReactor("create", "subjectaccessreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
					review := action.(ktesting.CreateActionImpl).Object.(*authorizationv1.SubjectAccessReview)
					review.Status.Allowed = true
					return true, review, nil
				})
				kube.PrependReactor("list", "nodes", func(ktesting.Action) (bool, runtime.Object, error) { // the informer lags behind
					return true, &corev1.NodeList{Items: []corev1.Node{*nodeAt("a"), *nodeAt("unseen")}}, nil
				})
				return NewApprover(set, kube, Reserved{})
			}).As("certificate-controller").Run(t, func(t *testing.T, s *apitest.Server) {
				must(s.Kube.CoreV1().Nodes().Create(ctx, nodeAt("a"), metav1.CreateOptions{}))
				s.Settle()
				csr := request(func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
					csr.Spec.Username, r.Subject.CommonName = "system:bootstrap:abcdef", "system:node:"+name
				})
				must(s.Kube.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{}))
				s.Settle()
				if len(decided) != 1 || decided[0].Type != want {
					t.Errorf("conditions %v, want %s", decided, want)
				}
			})
		})
	}
}
