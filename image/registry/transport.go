package registry

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// transports are the connections to registries: one pool for all hosts without settings of
// their own, and pools for each host that has some. A host whose files have changed gets
// new ones, so that renewed certificates count from the next operation on.
type transports struct {
	guard loopbackGuard

	mu     sync.Mutex
	shared *http.Transport
	own    map[string]ownTransport // by scheme://host
}

type ownTransport struct {
	made [sha256.Size]byte // of what
	pools
}

// pools are the connections that a host's settings lead to.
type pools struct {
	own *http.Transport // to the host
	// others is to where it sends us, if that is not to be met as the host is; else own.
	others *http.Transport
}

func (p pools) closeIdle() {
	p.own.CloseIdleConnections()
	p.others.CloseIdleConnections()
}

// of returns the pools for a host. stall bounds connecting and each wait for an answer.
func (t *transports) of(h *Host, stall time.Duration) (pools, error) {
	m, err := h.tls()
	if err != nil {
		return pools{}, err
	}
	dial := stall
	if h.DialTimeout > 0 {
		dial = h.DialTimeout
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !m.special && dial == stall {
		if t.shared == nil {
			t.shared = t.newTransport(stall, dial, nil)
		}
		return pools{t.shared, t.shared}, nil
	}
	made := sha256.Sum256(fmt.Appendf(m.source, "\n%s", dial))
	key := h.Scheme + "://" + h.Host
	old, ok := t.own[key]
	if ok && old.made == made {
		return old.pools, nil
	}
	if ok {
		old.closeIdle()
	}
	if t.own == nil {
		t.own = map[string]ownTransport{}
	}
	p := pools{own: t.newTransport(stall, dial, m.config)}
	p.others = p.own
	if h.SkipVerify || len(h.Pairs) > 0 {
		p.others = t.newTransport(stall, dial, &tls.Config{RootCAs: m.config.RootCAs, MinVersion: m.config.MinVersion})
	}
	t.own[key] = ownTransport{made, p}
	return p, nil
}

func (t *transports) newTransport(stall, dial time.Duration, c *tls.Config) *http.Transport {
	dialer := net.Dialer{Timeout: dial}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return t.guard.dial(ctx, dialer, network, address)
		},
		TLSClientConfig:       c,
		TLSHandshakeTimeout:   stall,
		ResponseHeaderTimeout: stall,
		ForceAttemptHTTP2:     true,
		// A pull comes in a burst; nothing is kept open while idle.
		IdleConnTimeout:     5 * time.Second,
		MaxIdleConnsPerHost: 8,
		// Blobs are compressed already, and digests are of what is stored.
		DisableCompression: true,
	}
}

func (t *transports) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared != nil {
		t.shared.CloseIdleConnections()
	}
	for _, o := range t.own {
		o.closeIdle()
	}
}

// material is what a host's TLS is made of.
type material struct {
	special bool // not what every host has
	config  *tls.Config
	source  []byte // the bytes of all files, to see a change
}

// tls reads a host's certificates.
func (h *Host) tls() (material, error) {
	m := material{special: h.SkipVerify || len(h.CAs)+len(h.Pairs) > 0}
	if !m.special {
		return m, nil
	}
	m.config = &tls.Config{InsecureSkipVerify: h.SkipVerify, MinVersion: tls.VersionTLS12}
	m.source = fmt.Appendf(nil, "%t\n", h.SkipVerify)
	if err := h.readCAs(&m); err != nil {
		return m, err
	}
	for _, p := range h.Pairs {
		cert, err := os.ReadFile(p.Cert)
		if err != nil {
			return m, fmt.Errorf("client certificate: %w", err)
		}
		key, err := os.ReadFile(p.Key)
		if err != nil {
			return m, fmt.Errorf("key of the client certificate: %w", err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return m, fmt.Errorf("client certificate %s with key %s: %w", p.Cert, p.Key, err)
		}
		m.config.Certificates = append(m.config.Certificates, pair)
		m.source = append(append(m.source, cert...), key...)
	}
	return m, nil
}

func (h *Host) readCAs(m *material) error {
	if len(h.CAs) == 0 {
		return nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return fmt.Errorf("system certificates: %w", err)
	}
	for _, file := range h.CAs {
		pem, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("CA file: %w", err)
		}
		if !pool.AppendCertsFromPEM(pem) {
			return fmt.Errorf("no certificate in CA file %s", file)
		}
		m.source = append(m.source, pem...)
	}
	m.config.RootCAs = pool
	return nil
}
