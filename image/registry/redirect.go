package registry

import (
	"errors"
	"net/http"
	"slices"
	"strings"
)

// maxRedirects is how many redirects are followed.
const maxRedirects = 10

var (
	errDowngrade        = errors.New("a redirect from HTTPS to HTTP, where anybody on the way could change the answer")
	errTooManyRedirects = errors.New("redirected more than 10 times")
)

// checkRedirect lets a request go on where it is redirected to. From HTTPS to HTTP only what is
// verified by its digest may, and without credentials: a tag's manifest, a token or an
// upload would be whatever the network says.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errTooManyRedirects
	}
	// Package http copies the headers of the first request to each that follows. So one that goes on
	// from HTTP to HTTP has the credentials again, even if the request before it had none.
	if req.URL.Scheme != "http" || !slices.ContainsFunc(via, func(r *http.Request) bool { return r.URL.Scheme == "https" }) {
		return nil
	}
	if !byDigest(via[0]) {
		return errDowngrade
	}
	req.Header.Del("Authorization")
	req.Header.Del("Cookie")
	return nil
}

// byDigest says whether what a request asks for is verified by its digest.
func byDigest(req *http.Request) bool {
	p := req.URL.Path
	return req.Method == http.MethodGet && (strings.Contains(p, "/blobs/sha256:") || strings.Contains(p, "/manifests/sha256:"))
}
