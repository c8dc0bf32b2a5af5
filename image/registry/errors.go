package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// remoteError is a registry's refusal or a failure to reach it, in words, with its
// kind and whether trying again may help.
type remoteError struct {
	kind      error
	said      string // the kind in other words, if its own would mislead
	text      string
	cause     error
	transient bool
	after     time.Duration // how long the registry asks us to stay away
}

// noneGiven is the text for ErrUnauthorized where there were no credentials to refuse.
const noneGiven = "registry wants credentials, and none were given"

func (e *remoteError) Error() string { return cmp.Or(e.said, e.kind.Error()) + ": " + e.text }

func (e *remoteError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// isTransient says whether a retry may help.
func isTransient(err error) bool {
	var r *remoteError
	return errors.As(err, &r) && r.transient
}

// isRefused says that no one listens at the address. A retry helps only if the
// registry was there a moment ago.
func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

// statusError words an answer that is not 2xx.
func (r *Repository) statusError(e *endpoint, what string, resp *http.Response) error {
	var body struct {
		Errors errcode.Errors `json:"errors"`
	}
	said := ""
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 8<<10)) // the words are only decoration
	if json.Unmarshal(data, &body) == nil && len(body.Errors) > 0 {
		said = fmt.Sprintf(": %.300s", body.Errors.Error())
	}
	return r.refusal(e, what, resp.StatusCode, said, retryAfter(resp.Header, time.Now()))
}

// tokenRequest is what refusal says was asked for: whether the image is there is not told by a
// token service that is not.
const tokenRequest = "the token request"

// refusal words a status. after is what Retry-After says.
func (r *Repository) refusal(e *endpoint, what string, status int, said string, after time.Duration) error {
	text := fmt.Sprintf("registry %s answers %d %s to %s%s", e.Host.Host, status, http.StatusText(status), what, said)
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if r.anonymous {
			return &remoteError{
				kind: ErrUnauthorized, said: noneGiven,
				text: text + "; give credentials, or check the name: many registries say the same of a repository that does not exist",
			}
		}
		return &remoteError{kind: ErrUnauthorized, text: text + "; check user name, password and rights"}
	case status == http.StatusNotFound && what != tokenRequest:
		return &remoteError{kind: ErrNotFound, text: text}
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500:
		if after > maxRetryAfter {
			return &remoteError{kind: ErrUnavailable, text: fmt.Sprintf("%s; it asks to come back in %s", text, after)}
		}
		return &remoteError{kind: ErrUnavailable, text: text, transient: true, after: after}
	}
	return &remoteError{kind: ErrUnavailable, text: text}
}

// transportError words a failure to reach the registry or to authenticate with it.
// If ctx has ended, that is the error.
func (r *Repository) transportError(ctx context.Context, e *endpoint, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var token *errcode.ErrorResponse
	if errors.As(err, &token) {
		said := ""
		if len(token.Errors) > 0 {
			said = fmt.Sprintf(": %.300s", token.Errors.Error())
		}
		return r.refusal(e, tokenRequest, token.StatusCode, said, e.refusals.after(token.URL.String()))
	}
	var noCredentials *credentialError
	if errors.As(err, &noCredentials) {
		return &remoteError{kind: ErrUnauthorized, cause: err, text: fmt.Sprintf("registry %s: %v", e.Host.Host, noCredentials)}
	}
	said := err.Error()
	var dial *url.Error
	if errors.As(err, &dial) {
		said = withoutQuery(dial)
	}
	if dial == nil && !errors.Is(err, errStalled) && !isNetwork(err) {
		// Neither an answer nor the network: the authentication cannot be
		// done, as with a Basic challenge and no password.
		hint := "; check the credentials"
		if strings.Contains(said, "bearer realm host") {
			hint = "; if that token service is to be trusted, name it in token_hosts of the registry"
		}
		wrong := ""
		if r.anonymous {
			wrong = noneGiven
		}
		return &remoteError{kind: ErrUnauthorized, said: wrong, cause: err, text: fmt.Sprintf("registry %s: %s%s", e.Host.Host, said, hint)}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		e.down.Store(true)
	}
	text := fmt.Sprintf("registry %s://%s: %s", e.scheme(), e.Host.Host, said)
	hint, transient := hintFor(err)
	if e.SkipVerify && isCertificate(err) { // of where the host sends us
		hint = fmt.Sprintf(
			"; certificates are not verified of %s alone: set ca_file for the registry, or ca in its hosts.toml, if this one is to be trusted, "+
				"or name a token service in token_hosts", e.Host.Host,
		)
	}
	return &remoteError{kind: ErrUnavailable, cause: err, text: text + hint, transient: transient}
}

// withoutQuery words an error without the query of its URL: where a registry keeps
// blobs elsewhere, that is a signature with which anybody may fetch them.
func withoutQuery(err *url.Error) string {
	u, perr := url.Parse(err.URL)
	if perr != nil {
		return fmt.Sprintf("%s: %v", err.Op, err.Err)
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return fmt.Sprintf("%s %q: %v", err.Op, u, err.Err)
}

func isNetwork(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// isCertificate says that a certificate could not be verified.
func isCertificate(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.As(err, &unverified)
}

// hintFor says what to do about an error of the network, and whether to try again.
func hintFor(err error) (hint string, transient bool) {
	var record tls.RecordHeaderError
	var dns *net.DNSError
	switch {
	case errors.Is(err, errLoopback):
		return "", false // the error says it
	case errors.Is(err, errDowngrade), errors.Is(err, errTooManyRedirects):
		return "; fix the registry", false
	case isRefused(err):
		return "; is the registry running there?", false
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return "; the registry speaks plain HTTP: set plain_http for it, or http:// in its hosts.toml", false
	case isCertificate(err):
		return "; set ca_file for the registry, or ca in its hosts.toml, if its certificate is to be trusted", false
	case errors.As(err, &dns) && dns.IsNotFound:
		return "; check the name of the registry", false
	}
	return "", true
}

// withMirrors adds to the registry's own error what its mirrors said.
func withMirrors(err error, mirrors []error) error {
	if len(mirrors) == 0 {
		return err
	}
	// Only in words: the kind of the error is the registry's.
	said := make([]string, len(mirrors))
	for i, m := range mirrors {
		said[i] = m.Error()
	}
	return fmt.Errorf("%w (mirrors: %s)", err, strings.Join(said, "; "))
}
