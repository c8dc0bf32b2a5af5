package registry

import (
	"net/http"
	"sync/atomic"
	"time"
)

// refusals is a transport that remembers how long the last answer that refused something asked us
// to stay away. Of a token service's answer the client in package auth tells the status and not the
// headers.
type refusals struct {
	base http.RoundTripper
	last atomic.Pointer[refusal]
}

type refusal struct {
	of    string // the URL
	after time.Duration
}

// RoundTrip implements http.RoundTripper.
func (t *refusals) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(req)
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		t.last.Store(&refusal{of: req.URL.String(), after: retryAfter(resp.Header, time.Now())})
	}
	return resp, err
}

// after is what Retry-After of the last refusal said, if that was of this URL: with another's,
// which came in between, a retry backs off as if nothing had been said.
func (t *refusals) after(url string) time.Duration {
	if last := t.last.Load(); last != nil && last.of == url {
		return last.after
	}
	return 0
}
