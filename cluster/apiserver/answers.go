package apiserver

import (
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// An answer of a webhook may have answerBase bytes, and answerShare for each byte of the request.
// client-go reads it whole, and has no limit. A review's answer is a patch of an object, or the
// object in another version, and etcd's limit for an object is 1.5 MiB. But one ConversionReview
// has all objects of a list, so that the answer can only be measured by the request.
const (
	answerBase  = 8 << 20
	answerShare = 4
)

// limitAnswers limits the answers that a client of another server reads. It is for
// rest.Config.Wrap.
func limitAnswers(through http.RoundTripper) http.RoundTripper { return answerLimiter{through} }

type answerLimiter struct{ through http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l answerLimiter) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.through.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	limit := answerBase + answerShare*max(req.ContentLength, 0)
	resp.Body = &limitedAnswer{resp.Body, limit, limit}
	return resp, nil
}

// WrappedRoundTripper is for client-go, which looks for the transport to close its connections.
func (l answerLimiter) WrappedRoundTripper() http.RoundTripper { return l.through }

// limitedAnswer fails when it is longer than limit. io.LimitReader would make it look complete.
type limitedAnswer struct {
	io.ReadCloser
	limit, left int64
}

// Read implements io.Reader.
func (a *limitedAnswer) Read(b []byte) (int, error) {
	if int64(len(b)) > a.left+1 {
		b = b[:a.left+1]
	}
	n, err := a.ReadCloser.Read(b)
	if int64(n) > a.left {
		n, err = int(a.left), fmt.Errorf("the answer is longer than %d bytes", a.limit)
	}
	a.left -= int64(n)
	return n, err
}

// limitWebhooks limits the answers of webhooks that objects of the API configure.
func limitWebhooks(resolver webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	limited := func(config *rest.Config, err error) (*rest.Config, error) {
		if err != nil {
			return nil, err
		}
		own := rest.CopyConfig(config) // for this API server itself, it is what others use too
		own.Wrap(limitAnswers)
		return own, nil
	}
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
			return limited(resolver.ClientConfigFor(hostPort))
		},
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
			return limited(resolver.ClientConfigForService(name, namespace, port))
		},
	}
}
