package registry

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
)

// slowest is the bytes per second below which a registry is not worth waiting for, so
// that one that drips cannot hold a download forever.
const slowest = 4 << 10

// userAgent is what registries see us as.
const userAgent = "coracle"

// endpoint is a host for the time of one operation.
type endpoint struct {
	Host
	https atomic.Bool // differs from Scheme once a guess was wrong
	// client answers authentication challenges (Basic, Bearer with token
	// services and OAuth2), keeping tokens for the time of the operation.
	client   *auth.Client
	refusals *refusals
	// down is set when no connection could be made.
	down atomic.Bool
	// lied is set when a blob with bytes of it was not what its digest says.
	lied atomic.Bool
}

func (c *Client) newEndpoint(registry string, h Host, a Auth) (*endpoint, error) {
	pools, err := c.transports.of(&h, c.cfg.StallTimeout)
	if err != nil {
		return nil, err
	}
	e := &endpoint{Host: h}
	e.https.Store(h.Scheme == "https")
	settings := registry
	if h.mirror {
		settings = h.Host
	}
	trusted := c.cfg.Settings[settings].TokenHosts
	var rt http.RoundTripper = pools.own
	if pools.others != pools.own {
		rt = &byHost{pools: pools, known: append([]string{h.Host}, trusted...)}
	}
	e.refusals = &refusals{base: rt}
	rt = e.refusals
	if len(h.Header) > 0 {
		rt = &withHeader{base: rt, of: e}
	}
	if len(trusted) > 0 {
		rt = &tokenService{base: rt, host: h.Host, trusted: trusted}
	}
	e.client = &auth.Client{
		Client:     &http.Client{Transport: rt, CheckRedirect: checkRedirect},
		Cache:      auth.NewCache(),
		Header:     http.Header{"User-Agent": {userAgent}},
		ClientID:   userAgent,
		Credential: c.credentialsFor(registry, &h, a),
	}
	return e, nil
}

// withHeader adds a host's headers to requests to it. As a transport it sees where
// each request goes: they may be secrets, which must follow no redirect to another host
// (nor to another port, or from HTTPS to HTTP).
type withHeader struct {
	base http.RoundTripper
	of   *endpoint
}

// RoundTrip implements http.RoundTripper.
func (t *withHeader) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host != t.of.Host.Host || req.URL.Scheme != t.of.scheme() {
		return t.base.RoundTrip(req)
	}
	req = req.Clone(req.Context())
	for name, values := range t.of.Header {
		// The token that a challenge asked for counts more than a fixed one.
		if name != "Authorization" || req.Header.Get(name) == "" {
			req.Header[name] = values
		}
	}
	return t.base.RoundTrip(req)
}

func (e *endpoint) scheme() string {
	if e.https.Load() {
		return "https"
	}
	return "http"
}

// url is where something of a repository is. A mirror serves several registries, and
// learns from ns which is meant, as containerd tells it.
func (e *endpoint) url(r *Repository, what string) string {
	u := e.scheme() + "://" + e.Host.Host + e.Path + "/" + r.path + "/" + what
	if e.mirror {
		sep := "?"
		if strings.Contains(what, "?") {
			sep = "&"
		}
		u += sep + "ns=" + url.QueryEscape(r.domain)
	}
	return u
}

// get asks an endpoint for manifests/<ref> or blobs/<digest>. The response has a status
// of 2xx and a body that fails when the registry falls silent or is not done in the
// time that size bytes may take; close it.
func (r *Repository) get(ctx context.Context, e *endpoint, what string, header http.Header, size int64) (*http.Response, error) {
	resp, err := r.ask(ctx, e, what, header, size)
	if err == nil && resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, r.statusError(e, what, resp)
	}
	return resp, err
}

// ask is get for answers of any status.
func (r *Repository) ask(ctx context.Context, e *endpoint, what string, header http.Header, size int64) (*http.Response, error) {
	stall := r.client.cfg.StallTimeout
	g := newGuard(ctx, stall, 4*stall+time.Duration(size/slowest)*time.Second)
	resp, err := r.send(g.ctx, e, what, header)
	if err != nil {
		err = g.why(err)
		g.stop()
		return nil, r.transportError(ctx, e, err)
	}
	g.pause()
	resp.Body = &guardedBody{ReadCloser: resp.Body, guard: g}
	return resp, nil
}

func (r *Repository) send(ctx context.Context, e *endpoint, what string, header http.Header) (*http.Response, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url(r, what), nil)
		if err != nil {
			return nil, err
		}
		for k, v := range header {
			req.Header[k] = v
		}
		resp, err := e.client.Do(req)
		if err != nil {
			return nil, err
		}
		if e.speaksHTTPS(resp) {
			continue
		}
		return resp, nil
	}
}

// speaksHTTPS says whether an answer to HTTP, which was a guess, is that HTTPS is spoken,
// and remembers it. Go's and nginx' servers say so in words.
func (e *endpoint) speaksHTTPS(resp *http.Response) bool {
	if !e.guess || e.https.Load() || resp.StatusCode != http.StatusBadRequest {
		return false
	}
	head, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
	resp.Body.Close()
	if strings.Contains(string(head), "HTTPS") {
		e.https.Store(true)
		return true
	}
	resp.Body = io.NopCloser(strings.NewReader(string(head)))
	return false
}
