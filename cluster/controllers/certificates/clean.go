package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

const (
	// settledFor is how long a request is kept after it was signed, denied or failed.
	settledFor = time.Hour
	// pendingFor is how long a request may wait for an answer, or for its certificate.
	pendingFor = 24 * time.Hour
)

type cleaner struct {
	set      *client.Set
	requests certificateslisters.CertificateSigningRequestLister
	frame    *frame.Controller
}

// NewCleaner returns the controller that deletes requests that are of no use any more: one timer
// per request, set from its conditions.
func NewCleaner(set *client.Set) *frame.Controller {
	requests := set.Informers.Certificates().V1().CertificateSigningRequests()
	c := &cleaner{set: set, requests: requests.Lister()}
	c.frame = frame.New("csr-cleaner", 1, set.Logger(), c.sync)
	c.frame.Watch(requests.Informer(), frame.Self)
	return c.frame
}

func (c *cleaner) sync(ctx context.Context, name string) error {
	csr, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	until := uselessAt(csr)
	if until.IsZero() {
		return nil
	}
	if left := time.Until(until); left >= 0 {
		c.frame.AddAfter(name, left+time.Second) // past the time, not at it
		return nil
	}
	return ignoreNotFound(c.set.Kube.CertificatesV1().CertificateSigningRequests().Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &csr.UID}}))
}

// uselessAt returns when a request is to be deleted, zero for never.
func uselessAt(csr *certificatesv1.CertificateSigningRequest) (at time.Time) {
	earlier := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	after := func(t metav1.Time, d time.Duration) {
		if !t.IsZero() {
			earlier(t.Add(d))
		}
	}
	if len(csr.Status.Conditions) == 0 {
		after(csr.CreationTimestamp, pendingFor)
	}
	for _, condition := range csr.Status.Conditions {
		switch issued := len(csr.Status.Certificate) > 0; {
		case condition.Type != certificatesv1.CertificateApproved: // denied, failed
			after(condition.LastUpdateTime, settledFor)
		case issued:
			after(condition.LastUpdateTime, settledFor)
			earlier(expiry(csr.Status.Certificate))
		default:
			after(condition.LastUpdateTime, pendingFor)
		}
	}
	return at
}

// expiry returns the end of a PEM certificate's life, zero if it is none.
func expiry(data []byte) time.Time {
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}
	}
	certificates, err := x509.ParseCertificates(block.Bytes)
	if err != nil || len(certificates) == 0 {
		return time.Time{}
	}
	return certificates[0].NotAfter
}
