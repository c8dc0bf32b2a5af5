package registry

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// byHost is a transport that applies a host's settings only to requests to that host: a client
// certificate, or no verification of its identity. They do not apply to hosts that it sends us to,
// by a redirect, the location of an upload or a token service. A hostile registry could otherwise
// use our certificate elsewhere, and anyone on the way there could pose as that host.
//
// The settings also apply to token services that the operator has named for the registry
// (token_hosts). They get its password, too.
type byHost struct {
	pools
	known []string // host[:port]
}

// RoundTrip implements http.RoundTripper.
func (t *byHost) RoundTrip(req *http.Request) (*http.Response, error) {
	if slices.ContainsFunc(t.known, func(host string) bool { return sameHost(req.URL, host) }) {
		return t.own.RoundTrip(req)
	}
	return t.others.RoundTrip(req)
}

// sameHost says whether a URL is at host[:port]. Capitals make no difference, nor whether the
// scheme's own port is named.
func sameHost(u *url.URL, host string) bool {
	other := url.URL{Host: host}
	return strings.EqualFold(u.Hostname(), other.Hostname()) && portOf(u, u.Port()) == portOf(u, other.Port())
}

func portOf(u *url.URL, port string) string {
	if port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}
