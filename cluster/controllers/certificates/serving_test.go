package certificates

import (
	"crypto/x509"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// The authority of serving certificates is the API server's, too, and a node says itself which
// addresses it has.
func TestServingCertificatesAreForANodesOwnAddresses(t *testing.T) {
	reserved := []string{"kubernetes.default.svc", "10.96.0.1", "192.0.2.1"}
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
		{"the kubernetes Service's name", serving("kubernetes.default.svc", ""), false},
		{"the name in other letters", serving("Kubernetes.Default.Svc.", ""), false},
		{"another node's address, which it says it has, too", serving("a", "192.0.2.20"), false},
		{"another node's name", serving("b", ""), false},
		{"loopback, which it says it has", serving("a", "127.0.0.1"), false},
		{"a name that it does not have", serving("example.com", ""), false},
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
				approvals(set, func(csr *certificatesv1.CertificateSigningRequest) { approved.Store(true) })
				return NewApprover(set, reserved)
			}).As("certificate-controller").Run(t, func(t *testing.T, s *apitest.Server) {
				for name, addresses := range map[string]string{
					"a": "192.0.2.10 2001:db8::10 192.0.2.1 192.0.2.20 127.0.0.1", "b": "192.0.2.20",
				} {
					node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
					for _, address := range strings.Fields(addresses) {
						node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
					}
					must(s.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}))
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

// approvals hands f each request that is approved.
func approvals(set *client.Set, f func(*certificatesv1.CertificateSigningRequest)) {
	set.Kube.(*fake.Clientset).PrependReactor("update", "certificatesigningrequests",
		func(action ktesting.Action) (bool, runtime.Object, error) {
			csr := action.(ktesting.UpdateActionImpl).Object.(*certificatesv1.CertificateSigningRequest)
			f(csr)
			return true, csr, nil
		})
}

// Who holds a bootstrap token does not become a node that exists.
func TestATokenTakesOverNoNode(t *testing.T) {
	for name, want := range map[string]bool{"a": false, "new": true} {
		t.Run(name, func(t *testing.T) {
			var approved atomic.Bool
			apitest.Ours(func(set *client.Set) *frame.Controller {
				approvals(set, func(csr *certificatesv1.CertificateSigningRequest) { approved.Store(true) })
				set.Kube.(*fake.Clientset).PrependReactor("create", "subjectaccessreviews",
					func(action ktesting.Action) (bool, runtime.Object, error) {
						review := action.(ktesting.CreateActionImpl).Object.(*authorizationv1.SubjectAccessReview)
						review.Status.Allowed = true
						return true, review, nil
					})
				return NewApprover(set, nil)
			}).As("certificate-controller").Run(t, func(t *testing.T, s *apitest.Server) {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
				must(s.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}))
				s.Settle()
				must(s.Kube.CertificatesV1().CertificateSigningRequests().Create(ctx,
					request(func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
						csr.Spec.Username, r.Subject.CommonName = "system:bootstrap:abcdef", "system:node:"+name
					}), metav1.CreateOptions{}))
				s.Settle()
				if approved.Load() != want {
					t.Errorf("approved: %t", approved.Load())
				}
			})
		})
	}
}
