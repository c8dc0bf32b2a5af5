package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/pki"
)

var ctx = context.Background()

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var caKey = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))

// ca is an authority that is valid at the time at which tests' clocks begin.
func ca() (tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, caKey.Public(), caKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: caKey}, err
}

// request is a signing request as a kubelet makes it.
func request(change func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)) *certificatesv1.CertificateSigningRequest {
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Username: "system:node:a", Groups: []string{"system:nodes"},
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}}
	if change != nil {
		change(csr, template)
	}
	der := must(x509.CreateCertificateRequest(rand.Reader, template, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))))
	csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return csr
}

func approve(csr *certificatesv1.CertificateSigningRequest) {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", LastUpdateTime: metav1.Now(),
	})
}

// run hands f what becomes of csr.
func run(t *testing.T, build func(*client.Set) *frame.Controller, csr func() *certificatesv1.CertificateSigningRequest,
	f func(s *apitest.Server, get func() (*certificatesv1.CertificateSigningRequest, error)),
) {
	t.Helper()
	apitest.Ours(build).As("certificate-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		requests := s.Kube.CertificatesV1().CertificateSigningRequests()
		must(requests.Create(ctx, csr(), metav1.CreateOptions{}))
		s.Settle()
		f(s, func() (*certificatesv1.CertificateSigningRequest, error) {
			return requests.Get(ctx, "csr", metav1.GetOptions{})
		})
	})
}

func TestApproval(t *testing.T) {
	type change = func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)
	for _, c := range []struct {
		name    string
		change  change
		allowed []string
		message string // of the approval, "" for none
	}{
		{"a node for itself", nil, []string{"selfnodeclient"}, "Auto approving self kubelet client certificate after SubjectAccessReview."},
		{"somebody for a node", func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			r.Subject.CommonName = "system:node:b"
		}, []string{"nodeclient"}, "Auto approving kubelet client certificate after SubjectAccessReview."},
		{"a node for another", func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			r.Subject.CommonName = "system:node:b"
		}, []string{"selfnodeclient"}, ""},
		{"one without the right", nil, nil, ""},
		{"a serving certificate", func(csr *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			csr.Spec.SignerName = certificatesv1.KubeletServingSignerName
		}, []string{"selfnodeclient", "nodeclient"}, ""},
		{"not a node's group", func(_ *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			r.Subject.Organization = []string{"system:masters"}
		}, []string{"selfnodeclient", "nodeclient"}, ""},
		{"denied before", func(csr *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
				Type:   certificatesv1.CertificateDenied,
				Status: corev1.ConditionTrue,
			}}
		}, []string{"selfnodeclient"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var approved certificatesv1.CertificateSigningRequestCondition
			apitest.Ours(func(set *client.Set) *frame.Controller {
				kube := set.Kube.(*fake.Clientset)
				kube.PrependReactor("create", "subjectaccessreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
					review := action.(ktesting.CreateActionImpl).Object.(*authorizationv1.SubjectAccessReview)
					for _, subresource := range c.allowed {
						review.Status.Allowed = review.Status.Allowed || review.Spec.User == "system:node:a" &&
							review.Spec.ResourceAttributes.Subresource == subresource
					}
					return true, review, nil
				})
				kube.PrependReactor("update", "certificatesigningrequests", func(action ktesting.Action) (bool, runtime.Object, error) {
					csr := action.(ktesting.UpdateActionImpl).Object.(*certificatesv1.CertificateSigningRequest)
					if action.GetSubresource() != "approval" {
						t.Errorf("%s was updated", action.GetSubresource())
					}
					approved = csr.Status.Conditions[len(csr.Status.Conditions)-1]
					return true, csr, nil
				})
				return NewApprover(set, set.Kube, Reserved{})
			}).As("certificate-controller").Run(t, func(t *testing.T, s *apitest.Server) {
				must(s.Kube.CertificatesV1().CertificateSigningRequests().Create(ctx, request(c.change), metav1.CreateOptions{}))
				s.Settle()
				if approved.Message != c.message {
					t.Errorf("approved %q, want %q", approved.Message, c.message)
				}
				if c.message != "" && (approved.Type != certificatesv1.CertificateApproved || approved.Reason != "AutoApproved") {
					t.Errorf("the condition is %v", approved)
				}
			})
		})
	}
}

func TestARightThatIsGivenLater(t *testing.T) {
	var allowed, approved atomic.Bool
	apitest.Ours(func(set *client.Set) *frame.Controller {
		kube := set.Kube.(*fake.Clientset)
		kube.PrependReactor("create", "subjectaccessreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
			review := action.(ktesting.CreateActionImpl).Object.(*authorizationv1.SubjectAccessReview)
			review.Status.Allowed = allowed.Load()
			return true, review, nil
		})
		kube.PrependReactor("update", "certificatesigningrequests", func(action ktesting.Action) (bool, runtime.Object, error) {
			approved.Store(true)
			return true, action.(ktesting.UpdateActionImpl).Object, nil
		})
		return NewApprover(set, set.Kube, Reserved{})
	}).As("certificate-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		must(s.Kube.CertificatesV1().CertificateSigningRequests().Create(ctx, request(nil), metav1.CreateOptions{}))
		s.Pass(time.Minute)
		if approved.Load() {
			t.Error("it was approved without the right")
		}
		allowed.Store(true)
		s.Pass(time.Hour)
		if !approved.Load() {
			t.Error("it was not approved with it")
		}
	})
}

func newSigner(set *client.Set) *frame.Controller { return NewSigner(set, ca, 0) }

func TestSigning(t *testing.T) {
	run(t, newSigner, func() *certificatesv1.CertificateSigningRequest {
		csr := request(nil)
		approve(csr)
		return csr
	}, func(s *apitest.Server, get func() (*certificatesv1.CertificateSigningRequest, error)) {
		csr := must(get())
		block, _ := pem.Decode(csr.Status.Certificate)
		if block == nil {
			t.Fatalf("no certificate, conditions %v", csr.Status.Conditions)
		}
		cert := must(x509.ParseCertificate(block.Bytes))
		root := must(x509.ParseCertificate(must(ca()).Certificate[0]))
		if err := cert.CheckSignatureFrom(root); err != nil {
			t.Error(err)
		}
		if cert.Subject.CommonName != "system:node:a" || cert.IsCA || len(cert.ExtKeyUsage) != 1 ||
			cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
			t.Errorf("certificate for %s, CA %t, for %v", cert.Subject, cert.IsCA, cert.ExtKeyUsage)
		}
		if life := cert.NotAfter.Sub(cert.NotBefore); life != DefaultLifetime {
			t.Errorf("it lives for %s", life)
		}
	})
}

// A certificate is shown with what the authority before says of its signer, and with nothing else.
func TestSigningWithACrossCertificate(t *testing.T) {
	dir := t.TempDir()
	ensure := func() *pki.Bundle {
		return must(pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil))
	}
	block, _ := pem.Decode(must(os.ReadFile(ensure().CACert)))
	before := must(x509.ParseCertificate(block.Bytes))
	if err := pki.Rotate(dir, pki.What{Authority: true}); err != nil {
		t.Fatal(err)
	}
	b := ensure()
	authority := func() (tls.Certificate, error) { return tls.LoadX509KeyPair(b.CA, b.CA) }
	run(t, func(set *client.Set) *frame.Controller { return NewSigner(set, authority, 0) }, func() *certificatesv1.CertificateSigningRequest {
		csr := request(nil)
		approve(csr)
		return csr
	}, func(_ *apitest.Server, get func() (*certificatesv1.CertificateSigningRequest, error)) {
		leaf, rest := pem.Decode(must(get()).Status.Certificate)
		cross, rest := pem.Decode(rest)
		if leaf == nil || cross == nil || len(rest) != 0 {
			t.Fatalf("want two certificates, and %q follows", rest)
		}
		between := must(x509.ParseCertificate(cross.Bytes))
		made := must(x509.ParseCertificate(leaf.Bytes))
		if err := errors.Join(made.CheckSignatureFrom(between), between.CheckSignatureFrom(before)); err != nil {
			t.Errorf("by the authority before: %v", err)
		}
	})
}

func TestWhatIsNotSigned(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)
		message string // of the condition Failed, "" for none
	}{
		{"not approved", func(csr *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			csr.Status.Conditions = nil
		}, ""},
		{"another signer's", func(csr *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			csr.Spec.SignerName = "example.com/signer"
		}, ""},
		{"a client that wants to serve", func(csr *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			csr.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
			csr.Spec.Usages = append(csr.Spec.Usages, certificatesv1.UsageServerAuth)
		}, "invalid usage for client certificate: server auth"},
		{"a client that wants nothing", func(csr *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			csr.Spec.SignerName, csr.Spec.Usages = certificatesv1.KubeAPIServerClientSignerName, nil
		}, "missing required usage for client certificate: client auth"},
		{"a kubelet of another group", func(_ *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			r.Subject.Organization = []string{"system:masters"}
		}, "subject organization is not system:nodes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, newSigner, func() *certificatesv1.CertificateSigningRequest {
				return request(func(csr *certificatesv1.CertificateSigningRequest, r *x509.CertificateRequest) {
					approve(csr)
					c.change(csr, r)
				})
			}, func(s *apitest.Server, get func() (*certificatesv1.CertificateSigningRequest, error)) {
				csr := must(get())
				if len(csr.Status.Certificate) > 0 {
					t.Error("it was signed")
				}
				var failed certificatesv1.CertificateSigningRequestCondition
				for _, condition := range csr.Status.Conditions {
					if condition.Type == certificatesv1.CertificateFailed {
						failed = condition
					}
				}
				if failed.Message != c.message || c.message != "" && failed.Reason != "SignerValidationFailure" {
					t.Errorf("it failed with %s %q, want %q", failed.Reason, failed.Message, c.message)
				}
			})
		})
	}
}

func TestLifetime(t *testing.T) {
	for asked, want := range map[int32]time.Duration{
		60:          10 * time.Minute,     // the least there is
		3600:        time.Hour,            // as asked
		400 * 86400: 365 * 24 * time.Hour, // the most there is
	} {
		run(t, newSigner, func() *certificatesv1.CertificateSigningRequest {
			csr := request(nil)
			csr.Spec.ExpirationSeconds = &asked
			approve(csr)
			return csr
		}, func(_ *apitest.Server, get func() (*certificatesv1.CertificateSigningRequest, error)) {
			block, _ := pem.Decode(must(get()).Status.Certificate)
			cert := must(x509.ParseCertificate(block.Bytes))
			// Short ones are not shortened by starting early.
			if life := cert.NotAfter.Sub(cert.NotBefore); life != want && life != want+backdate {
				t.Errorf("%d s asked, it lives for %s, want %s", asked, life, want)
			}
		})
	}
}

func TestCleaning(t *testing.T) {
	condition := func(of certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
		return []certificatesv1.CertificateSigningRequestCondition{{Type: of, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now()}}
	}
	for _, c := range []struct {
		name   string
		change func(*certificatesv1.CertificateSigningRequest)
		after  time.Duration
	}{
		{"pending", func(*certificatesv1.CertificateSigningRequest) {}, 24 * time.Hour},
		{"denied", func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = condition(certificatesv1.CertificateDenied)
		}, time.Hour},
		{"failed", func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = condition(certificatesv1.CertificateFailed)
		}, time.Hour},
		{"approved, never signed", func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = condition(certificatesv1.CertificateApproved)
		}, 24 * time.Hour},
		{"signed", func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = condition(certificatesv1.CertificateApproved)
			csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: must(ca()).Certificate[0]})
		}, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, NewCleaner, func() *certificatesv1.CertificateSigningRequest {
				csr := request(nil)
				c.change(csr)
				return csr
			}, func(s *apitest.Server, get func() (*certificatesv1.CertificateSigningRequest, error)) {
				s.Pass(c.after - time.Minute)
				if _, err := get(); err != nil {
					t.Errorf("before its time: %v", err)
				}
				s.Pass(2 * time.Minute)
				if _, err := get(); !apierrors.IsNotFound(err) {
					t.Errorf("after its time: %v", err)
				}
			})
		})
	}
}
