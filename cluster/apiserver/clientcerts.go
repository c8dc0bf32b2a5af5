package apiserver

import (
	"crypto/sha256"
	"crypto/x509"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/lru"
)

// verifiedLimit is how many certificates of clients are remembered as verified, at most 1 kB for
// each. Each node has one.
const verifiedLimit = 8192

// clientCertificates authenticates requests by the certificates of their connections, with
// upstream's authenticator. That verifies the signatures of a chain again for each request, which
// takes about a tenth of a small one's processor time. Here a chain is verified once, until one of
// its certificates ends or the authorities change.
type clientCertificates struct {
	authorities x509request.VerifyOptionFunc
	upstream    authenticator.Request
	// observe only counts the certificate in apiserver_client_certificate_expiration_seconds, which
	// upstream's authenticator does before it verifies: without authorities there is no signature to
	// verify.
	observe  authenticator.Request
	verified *lru.Cache // chainKey to *verifiedChain
}

// chainKey is what decides whether a chain is valid, but for the time.
type chainKey struct {
	authorities *x509.CertPool // another one after each change of the file
	sent        [sha256.Size]byte
}

// verifiedChain is a chain that was verified. As a [user.Info] it carries the times from upstream's
// authenticator, which knows the whole chain, to ours, which does not.
type verifiedChain struct {
	user.Info
	from, until time.Time
}

func newClientCertificates(authorities x509request.VerifyOptionFunc) *clientCertificates {
	return &clientCertificates{
		authorities: authorities,
		upstream:    x509request.NewDynamic(authorities, x509request.UserConversionFunc(userOfChain)),
		observe:     x509request.New(x509.VerifyOptions{Roots: x509.NewCertPool()}, x509request.UserConversionFunc(userOfChain)),
		verified:    lru.New(verifiedLimit),
	}
}

// userOfChain implements [x509request.UserConversion].
func userOfChain(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
	response, ok, err := x509request.CommonNameUserConversion(chain)
	if err != nil || !ok {
		return nil, ok, err
	}
	v := &verifiedChain{Info: response.User, from: chain[0].NotBefore, until: chain[0].NotAfter}
	for _, c := range chain[1:] {
		if c.NotBefore.After(v.from) {
			v.from = c.NotBefore
		}
		if c.NotAfter.Before(v.until) {
			v.until = c.NotAfter
		}
	}
	return &authenticator.Response{Audiences: response.Audiences, User: v}, true, nil
}

// AuthenticateRequest implements [authenticator.Request].
func (c *clientCertificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	options, ok := c.authorities()
	if !ok {
		return nil, false, nil
	}
	key := chainKey{authorities: options.Roots, sent: digest(r.TLS.PeerCertificates)}
	if found, ok := c.verified.Get(key); ok {
		v, now := found.(*verifiedChain), time.Now()
		if !now.Before(v.from) && !now.After(v.until) {
			_, _, _ = c.observe.AuthenticateRequest(r)
			return &authenticator.Response{User: v.Info}, true, nil
		}
	}
	response, ok, err := c.upstream.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, ok, err
	}
	v := response.User.(*verifiedChain) // from userOfChain
	// The file may have changed since the key was made: then what the old authorities accept, or
	// the new ones, would be remembered of the others.
	if now, ok := c.authorities(); ok && now.Roots == options.Roots {
		c.verified.Add(key, v)
	}
	return &authenticator.Response{Audiences: response.Audiences, User: v.Info}, true, nil
}

// digest is of what a client has sent: its own certificate first, then those between it and an
// authority.
func digest(sent []*x509.Certificate) (sum [sha256.Size]byte) {
	if len(sent) == 1 {
		return sha256.Sum256(sent[0].Raw)
	}
	h := sha256.New()
	for _, c := range sent {
		_, _ = h.Write(c.Raw) // DER says how long it is, so no other chain has the same bytes
	}
	h.Sum(sum[:0])
	return sum
}
