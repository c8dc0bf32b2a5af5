package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

// asked is a registry and how it is to be spoken with.
type asked struct {
	Registry
	settings config.Registry
}

// registriesOf lists those that are configured, their mirrors, and more, each once.
func registriesOf(c *config.Image, more []string) []asked {
	all := map[string]asked{}
	add := func(host string, s config.Registry) {
		scheme := "https"
		if name, rest, ok := strings.Cut(host, "://"); ok {
			scheme, host = name, rest
		}
		if s.PlainHTTP || loopback(host) {
			scheme = "http"
		}
		server := host
		if host == "docker.io" { // what is called so is elsewhere
			server = "registry-1.docker.io"
		}
		if _, have := all[server]; !have && server != "" {
			all[server] = asked{Registry{Host: server, URL: scheme + "://" + server + "/v2/", Hosts: hostsFile(c.CertsDirs, host)}, s}
		}
	}
	for host, s := range c.Registry {
		add(host, s)
		for _, mirror := range s.Mirrors {
			add(mirror, config.Registry{InsecureSkipVerify: s.InsecureSkipVerify, CAFile: s.CAFile})
		}
	}
	short, _, _ := strings.Cut(c.ShortNameRegistry, "/")
	for _, host := range append([]string{short}, more...) {
		add(host, config.Registry{})
	}
	sorted := make([]asked, 0, len(all))
	for _, host := range slices.Sorted(maps.Keys(all)) {
		sorted = append(sorted, all[host])
	}
	return sorted
}

// hostsFile finds the hosts.toml that holds for a registry.
func hostsFile(dirs []string, host string) string {
	for _, dir := range dirs {
		for _, name := range []string{host, "_default"} {
			if file := filepath.Join(dir, name, "hosts.toml"); host != "" && exists(file) {
				return file
			}
		}
	}
	return ""
}

// loopback registries are spoken with in plain HTTP without asking, by coracled too.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

func askRegistries(ctx context.Context, all []asked) []Registry {
	together(all, func(a *asked) { a.ask(ctx) })
	out := make([]Registry, len(all))
	for i := range all {
		out[i] = all[i].Registry
	}
	return out
}

// ask sends GET /v2/, which every registry answers (OCI distribution spec, end-1), without
// credentials.
func (a *asked) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: a.settings.InsecureSkipVerify}, // as coracled is told to
	}
	if file := a.settings.CAFile; file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			a.Err, a.Kind = "ca_file: "+err.Error(), OtherReason
			return
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		pool.AppendCertsFromPEM(pem)
		transport.TLSClientConfig.RootCAs = pool
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL, nil)
	if err != nil {
		a.Err, a.Kind = err.Error(), OtherReason
		return
	}
	began := time.Now()
	resp, err := client.Do(req)
	a.Took = time.Since(began)
	if err != nil {
		a.Err, a.Kind = reason(err)
		return
	}
	_ = resp.Body.Close()
	a.Status = resp.StatusCode
}

// reason tells kinds of errors apart, by their types.
func reason(err error) (string, Unreachable) {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var (
		name        *net.DNSError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &name) && !name.IsTimeout:
		return err.Error(), NoName
	case errors.As(err, &certificate):
		return err.Error(), NoTrust
	case errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch):
		return err.Error(), NotTLS
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %v", patience), NoAnswer
	}
	return err.Error(), OtherReason
}
