package registry

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// tokenPath is where a trusted token service seems to be on the registry's host.
const tokenPath = "/.coracle-token-service/"

// tokenService is a transport that lets a registry send us to token services that the
// operator has named, though they have private addresses.
//
// The client in package auth refuses a service on another host than the registry's
// that has a private or loopback address, and has no setting for it: a hostile registry could have
// us send requests into our own network (GHSA-xf85-363p-868w). So a challenge that
// names a trusted service is changed to name a path on the registry's own host, and a
// request for that path goes to the service. All other challenges reach the client as
// they are, and so does one that would fall back from HTTPS to HTTP.
type tokenService struct {
	base    http.RoundTripper
	host    string   // of the registry
	trusted []string // host[:port] of token services

	mu     sync.Mutex
	realms []*url.URL
}

// RoundTrip implements http.RoundTripper.
func (t *tokenService) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host != t.host {
		return t.base.RoundTrip(req) // a redirect to elsewhere
	}
	if realm := t.realmAt(req.URL.Path); realm != nil {
		to := req.Clone(req.Context())
		to.Host, to.URL.Host = "", realm.Host
		to.URL.Scheme, to.URL.Path, to.URL.RawPath = realm.Scheme, realm.Path, realm.RawPath
		resp, err := t.base.RoundTrip(to)
		if err != nil {
			return nil, fmt.Errorf("token service %s: %w", realm.Host, err)
		}
		return resp, nil
	}
	resp, err := t.base.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		t.redirect(resp.Header, req.URL)
	}
	return resp, err
}

var realmParameter = regexp.MustCompile(`(?i)\brealm="([^"]*)"`)

// redirect changes a challenge that names a trusted service.
func (t *tokenService) redirect(h http.Header, from *url.URL) {
	challenge := h.Get("Www-Authenticate")
	at := realmParameter.FindStringSubmatchIndex(challenge)
	if at == nil {
		return
	}
	realm, err := url.Parse(challenge[at[2]:at[3]])
	if err != nil || realm.User != nil || realm.Scheme != "https" && (realm.Scheme != "http" || from.Scheme != "http") ||
		!slices.ContainsFunc(t.trusted, func(host string) bool { return strings.EqualFold(host, realm.Host) }) {
		return
	}
	query := realm.RawQuery
	realm.RawQuery = ""
	path, ok := t.remember(realm)
	if !ok {
		return
	}
	here := url.URL{Scheme: from.Scheme, Host: from.Host, Path: path, RawQuery: query}
	h.Set("Www-Authenticate", challenge[:at[2]]+here.String()+challenge[at[3]:])
}

// maxRealms is how many realms a registry may name in the time of one operation.
const maxRealms = 16

// remember returns the path that represents a realm; not ok if there are too many.
func (t *tokenService) remember(realm *url.URL) (path string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.realms, func(r *url.URL) bool { return *r == *realm })
	if i < 0 && len(t.realms) == maxRealms {
		return "", false
	}
	if i < 0 {
		i, t.realms = len(t.realms), append(t.realms, realm)
	}
	return tokenPath + strconv.Itoa(i), true
}

// realmAt returns the realm behind a path of the token service, or nil.
func (t *tokenService) realmAt(path string) *url.URL {
	n, ok := strings.CutPrefix(path, tokenPath)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i, err := strconv.Atoi(n)
	if err != nil || i < 0 || i >= len(t.realms) {
		return nil
	}
	return t.realms[i]
}
