package image

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// transports are the connections to registries: one pool for all, and one for each
// registry with TLS settings of its own.
type transports struct {
	registries map[string]Registry
	shared     *http.Transport
	own        map[string]*http.Transport
}

func newTransports(cfg Config) (*transports, error) {
	t := &transports{
		registries: cfg.Registries,
		shared:     newTransport(cfg.StallTimeout, nil),
		own:        map[string]*http.Transport{},
	}
	for host, r := range cfg.Registries {
		if r.CAFile == "" && !r.InsecureSkipVerify {
			continue
		}
		c := &tls.Config{InsecureSkipVerify: r.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
		if r.CAFile != "" {
			pool, err := x509.SystemCertPool()
			if err != nil {
				return nil, fmt.Errorf("registry %s: system certificates: %w", host, err)
			}
			pem, err := os.ReadFile(r.CAFile)
			if err != nil {
				return nil, fmt.Errorf("registry %s: CA file: %w", host, err)
			}
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("registry %s: no certificate in CA file %s", host, r.CAFile)
			}
			c.RootCAs = pool
		}
		t.own[host] = newTransport(cfg.StallTimeout, c)
	}
	return t, nil
}

func newTransport(stall time.Duration, c *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: stall}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
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
	t.shared.CloseIdleConnections()
	for _, o := range t.own {
		o.CloseIdleConnections()
	}
}

// of returns the transport and the scheme for a host. guess says that HTTP is only
// an assumption, for a loopback address without settings.
func (t *transports) of(host string) (rt *http.Transport, scheme string, guess bool) {
	rt = t.shared
	if own := t.own[host]; own != nil {
		rt = own
	}
	r, configured := t.registries[host]
	switch {
	case r.PlainHTTP:
		return rt, "http", false
	case !configured && isLoopback(host):
		return rt, "http", true
	}
	return rt, "https", false
}

// isLoopback says whether a host[:port] is this machine by its very name.
func isLoopback(host string) bool {
	if h, port, err := net.SplitHostPort(host); err == nil {
		if port == "443" {
			return false
		}
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
