package certificates

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/kubernetes/pkg/apis/certificates"
	conditions "k8s.io/kubernetes/pkg/controller/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates/authority"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

const (
	// DefaultLifetime is the longest that a certificate is valid.
	DefaultLifetime = 365 * 24 * time.Hour
	shortest        = 10 * time.Minute
	// backdate makes up for clocks that are behind; certificates shorter than short are not
	// shortened by it.
	backdate = 5 * time.Minute
	short    = 8 * time.Hour
)

// accepts holds, for each signer, what a request must be like to be signed.
var accepts = map[string]func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) error{
	certificatesv1.KubeletServingSignerName: func(csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) error {
		return certificates.ValidateKubeletServingCSR(request, usages(csr))
	},
	certificatesv1.KubeAPIServerClientKubeletSignerName: func(csr *certificatesv1.CertificateSigningRequest,
		request *x509.CertificateRequest,
	) error {
		return certificates.ValidateKubeletClientCSR(request, usages(csr))
	},
	certificatesv1.KubeAPIServerClientSignerName: func(csr *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) error {
		return clientUsages(csr.Spec.Usages)
	},
}

// clientUsages returns an error unless a certificate with these usages is for clients, and for
// nothing else.
func clientUsages(usages []certificatesv1.KeyUsage) error {
	client := false
	for _, usage := range usages {
		switch usage {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment:
		case certificatesv1.UsageClientAuth:
			client = true
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", usage)
		}
	}
	if !client {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

type signer struct {
	set      *client.Set
	requests certificateslisters.CertificateSigningRequestLister
	ca       func() (tls.Certificate, error)
	lifetime time.Duration
}

// NewSigner returns the controller that signs the approved requests of the signers
// kubernetes.io/kube-apiserver-client-kubelet, kubernetes.io/kubelet-serving and
// kubernetes.io/kube-apiserver-client. ca is asked for the authority before each signature, so that
// a renewed one is used at once; lifetime bounds the certificates, 0 means DefaultLifetime.
func NewSigner(set *client.Set, ca func() (tls.Certificate, error), lifetime time.Duration) *frame.Controller {
	requests := set.Informers.Certificates().V1().CertificateSigningRequests()
	if lifetime == 0 {
		lifetime = DefaultLifetime
	}
	s := &signer{set: set, requests: requests.Lister(), ca: ca, lifetime: lifetime}
	f := frame.New("csr-signing", 1, set.Logger(), s.sync)
	f.Watch(requests.Informer(), frame.Self)
	return f
}

func (s *signer) sync(ctx context.Context, name string) error {
	csr, err := s.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	accept := accepts[csr.Spec.SignerName]
	if accept == nil || len(csr.Status.Certificate) > 0 || !conditions.IsCertificateRequestApproved(csr) ||
		conditions.HasTrueCondition(csr, certificatesv1.CertificateFailed) {
		return nil
	}
	request, err := certificates.ParseCSR(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("certificate signing request %s: %w", name, err)
	}
	csr = csr.DeepCopy()
	if err := accept(csr, request); err != nil {
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue,
			Reason: "SignerValidationFailure", Message: err.Error(), LastUpdateTime: metav1.Now(),
		})
	} else if csr.Status.Certificate, err = s.sign(request, csr.Spec.Usages, csr.Spec.ExpirationSeconds); err != nil {
		return fmt.Errorf("signing %s: %w", name, err)
	}
	_, err = s.set.Kube.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{})
	return ignoreNotFound(err)
}

// sign returns the certificate in PEM.
func (s *signer) sign(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage, expirationSeconds *int32) ([]byte, error) {
	pair, err := s.ca()
	if err != nil {
		return nil, err
	}
	if len(pair.Certificate) == 0 {
		return nil, fmt.Errorf("the certificate authority has no certificate")
	}
	root, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("the certificate authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the certificate authority's key of type %T cannot sign", pair.PrivateKey)
	}
	lifetime := s.lifetime
	if expirationSeconds != nil {
		lifetime = min(max(csr.ExpirationSecondsToDuration(*expirationSeconds), shortest), s.lifetime)
	}
	ca := authority.CertificateAuthority{Certificate: root, PrivateKey: key}
	der, err := ca.Sign(request.Raw, authority.PermissiveSigningPolicy{TTL: lifetime, Usages: usages, Backdate: backdate, Short: short})
	if err != nil {
		return nil, err
	}
	return append(encode(der), crossed(pair)...), nil
}

// crossed are the certificates by which authorities before certify the next one, PEM: clients that
// know only one of these trust what the newest signs. Former authorities themselves are left out.
func crossed(pair tls.Certificate) (all []byte) {
	for _, der := range pair.Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		if err == nil && !bytes.Equal(cert.RawSubject, cert.RawIssuer) {
			all = append(all, encode(der)...)
		}
	}
	return all
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
