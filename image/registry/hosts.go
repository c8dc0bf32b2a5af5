package registry

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Host is one server that serves a registry's content, and how it is reached.
type Host struct {
	Scheme, Host string // https, registry.example:5000
	Path         string // of the API's root: /v2
	Can          Capability
	// CAs and Pairs are PEM files: authorities to trust besides the system's, and
	// certificates to show with their keys. CAs count where the host sends us, too; Pairs
	// and SkipVerify do not.
	CAs        []string
	Pairs      []KeyPair
	SkipVerify bool
	// DialTimeout, if not 0, bounds connecting.
	DialTimeout time.Duration
	// Header is sent with requests to this host, and to no other.
	Header http.Header

	guess  bool // HTTP is an assumption: switch if the host turns out to speak HTTPS
	mirror bool // not the registry itself
	listed bool // a directory of certs_dirs is this registry's own
}

// KeyPair is the files of a client certificate. Key may be the same file.
type KeyPair struct{ Cert, Key string }

// hosts are those that serve a registry, in the order in which they are asked.
func (c *Client) hosts(registry string) ([]Host, error) {
	hosts, err := c.describedHosts(registry)
	if err == nil {
		c.listHosts(registry, hosts)
	}
	return hosts, err
}

func (c *Client) describedHosts(registry string) ([]Host, error) {
	if s, ok := c.cfg.Settings[registry]; ok && s.reach() {
		return c.configured(registry)
	}
	hosts, found, err := fromCertsDirs(c.cfg.CertsDirs, registry)
	if err != nil || found {
		return hosts, err
	}
	return c.configured(registry)
}

// reach says whether the settings tell how the registry is reached.
func (s *Settings) reach() bool {
	return s.PlainHTTP || s.InsecureSkipVerify || s.CAFile != "" || len(s.Mirrors) > 0
}

// configured are the hosts of a registry by the settings alone.
func (c *Client) configured(registry string) ([]Host, error) {
	var hosts []Host
	for _, m := range c.cfg.Settings[registry].Mirrors {
		scheme, host, err := parseMirror(m)
		if err != nil {
			return nil, fmt.Errorf("mirror %q: %w", m, err)
		}
		h := c.plain(host, host)
		h.mirror, h.Can = true, everything&^Push
		if scheme != "" {
			h.Scheme, h.guess = scheme, false
		}
		hosts = append(hosts, h)
	}
	return append(hosts, c.plain(registry, apiHost(registry))), nil
}

// plain is a host with the settings of a registry.
func (c *Client) plain(registry, host string) Host {
	s, known := c.cfg.Settings[registry]
	h := Host{Scheme: "https", Host: host, Path: "/v2", Can: everything, SkipVerify: s.InsecureSkipVerify}
	if s.CAFile != "" {
		h.CAs = []string{s.CAFile}
	}
	switch {
	case s.PlainHTTP:
		h.Scheme = "http"
	case !known && isLoopback(host):
		h.Scheme, h.guess = "http", true
	}
	return h
}

// parseMirror splits a mirror into scheme ("" if not given) and host.
func parseMirror(m string) (scheme, host string, err error) {
	if !strings.Contains(m, "://") {
		m = "//" + m
	}
	u, err := url.Parse(m)
	if err != nil {
		return "", "", err
	}
	if u.Host == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return "", "", errors.New("want host[:port] or http(s)://host[:port]")
	}
	if u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" {
		return "", "", fmt.Errorf("scheme %q is neither http nor https", u.Scheme)
	}
	return u.Scheme, u.Host, nil
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
