package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	userPrefix = "system:node:"
	group      = "system:nodes"
)

// identity has the certificates by which nodes recognize each other.
type identity struct {
	ca, client, serving string

	mu    sync.Mutex
	cache map[string]cached
}

// cached is the content of a file when it was last read.
type cached struct {
	changed time.Time
	size    int64
	pair    tls.Certificate
	pool    *x509.CertPool
}

func newIdentity(f Settings) *identity {
	return &identity{ca: f.CA, client: f.Client, serving: f.Serving, cache: map[string]cached{}}
}

// load reads a file unless it is unchanged.
func (i *identity) load(path string, read func(data []byte, c *cached) error) (cached, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	info, err := os.Stat(path)
	if err != nil {
		return cached{}, err
	}
	if c, ok := i.cache[path]; ok && c.changed.Equal(info.ModTime()) && c.size == info.Size() {
		return c, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return cached{}, err
	}
	c := cached{changed: info.ModTime(), size: info.Size()}
	if err := read(data, &c); err != nil {
		return cached{}, fmt.Errorf("%s: %w", path, err)
	}
	i.cache[path] = c
	return c, nil
}

func (i *identity) pair(path string) (tls.Certificate, error) {
	c, err := i.load(path, func(data []byte, c *cached) (err error) {
		c.pair, err = tls.X509KeyPair(data, data)
		return err
	})
	return c.pair, err
}

func (i *identity) pool() (*x509.CertPool, error) {
	c, err := i.load(i.ca, func(data []byte, c *cached) error {
		c.pool = x509.NewCertPool()
		if !c.pool.AppendCertsFromPEM(data) {
			return errors.New("no certificate")
		}
		return nil
	})
	return c.pool, err
}

// server is the TLS configuration for connections of other nodes. Both certificates may be
// replaced while it is in use.
func (i *identity) server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := i.pool()
		if err != nil {
			return nil, err
		}
		pair, err := i.pair(i.serving)
		if err != nil {
			return nil, err
		}
		return &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientCAs: pool,
			ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"http/1.1"},
			// A connection that is resumed would outlive its certificate.
			SessionTicketsDisabled: true,
			VerifyConnection: func(s tls.ConnectionState) error {
				_, err := nodeOf(s.PeerCertificates)
				return err
			},
		}, nil
	}}
}

// clientOf is the TLS configuration for a connection to the node called name. The certificate has
// to name the node, and not its address: that comes from the cluster.
func (i *identity) clientOf(name string) (*tls.Config, error) {
	pool, err := i.pool()
	if err != nil {
		return nil, err
	}
	pair, err := i.pair(i.client)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		InsecureSkipVerify: true, // of the host's name only: the rest is below
		VerifyConnection: func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
				Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			})
			if err != nil {
				return err
			}
			if got, err := nodeOf(s.PeerCertificates); err != nil || got != name {
				return errors.Join(fmt.Errorf("certificate of %q instead of node %q", got, name), err)
			}
			return nil
		},
	}, nil
}

// nodeOf is the node that a verified certificate names.
func nodeOf(chain []*x509.Certificate) (string, error) {
	if len(chain) == 0 {
		return "", errors.New("no certificate")
	}
	s := chain[0].Subject
	name, ok := strings.CutPrefix(s.CommonName, userPrefix)
	if !ok || name == "" || !slices.Contains(s.Organization, group) {
		return "", fmt.Errorf("certificate of %q, which is no node", s.CommonName)
	}
	return name, nil
}
