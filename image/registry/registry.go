// Package registry speaks with registries (OCI distribution spec 1.1): which hosts serve
// a repository, how they are connected to and authenticated with, and how documents and
// blobs are fetched from them whatever the network does. It knows nothing of images: what it
// returns is bytes whose digest is right.
//
// # Vocabulary
//
// A registry is named by the domain of a reference (docker.io). The hosts that serve it are
// asked in order: its mirrors, then the registry itself. They come from the settings of the
// registry if those say how it is reached, else from a hosts.toml (see Config.CertsDirs), and
// are read again for each Repository, so that edits need no restart.
//
// # One operation
//
//	repo, err := client.Repository("docker.io", "library/busybox", auth)
//	top, err := repo.Resolve(ctx, "1.36")     // a tag or a digest
//	data, err := repo.Fetch(ctx, descriptor)  // small documents
//	err = repo.Blob(ctx, descriptor, file, func(n int64) { … })
//
// A Repository keeps tokens and is for one operation; connections belong to the Client.
//
// # Errors
//
// Each has one of the kinds below and one sentence with the host, what was asked, and what
// may help. Errors that time may heal (resets, silence, 408, 429, 5xx) have been retried,
// as long as Retry-After asks for, before they are returned.
//
// # Credentials
//
// Those given with an operation are for the registry itself: no mirror gets them, and no
// host that a redirect leads to, nor do headers of hosts.toml. Client certificates are shown,
// and skip_verify counts, at the host that they are set for and its TokenHosts alone.
package registry

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kinds of error, for errors.Is.
var (
	ErrNotFound     = errors.New("image not found")
	ErrUnauthorized = errors.New("registry refused the credentials")
	ErrUnavailable  = errors.New("registry unreachable")
	ErrInvalid      = errors.New("invalid image") // wrong digest or size, too large
)

// Limits of what a registry may make us hold in memory, bytes.
const (
	MaxManifest = 4 << 20
	MaxDocument = 8 << 20 // of anything fetched with Fetch
)

// Config is what a Client is made with.
type Config struct {
	// Settings are per registry, by the host[:port] of references (docker.io for Docker
	// Hub). Those not listed are reached by HTTPS, on loopback addresses by HTTP first.
	Settings map[string]Settings
	// OnlyListedLoopback refuses to connect to loopback addresses but where Settings or a
	// registry's own directory of CertsDirs name the host and port.
	OnlyListedLoopback bool
	// CertsDirs are directories as containerd has them in /etc/containerd/certs.d: for
	// a registry host:port a directory host_port_ or host:port, else _default, with a
	// hosts.toml or with *.crt, *.cert and *.key. The first that has one counts.
	CertsDirs []string
	// DockerConfig is the path of a Docker config.json, whose credentials and
	// credential helpers serve operations that bring none. Empty: none.
	DockerConfig string
	// MaxConcurrentDownloads is how many connections fetch blobs of one registry at the same
	// time, over all operations. Default 6.
	MaxConcurrentDownloads int
	// StallTimeout is how long a registry may be silent before the connection
	// is given up and retried. Default 30 s.
	StallTimeout time.Duration
	// ProgressTimeout is how long an operation may go on asking without getting a byte,
	// retries and waits included. Default 5 min.
	ProgressTimeout time.Duration
}

// Settings is how one registry is reached. If any of the first four is set, hosts.toml
// is not looked for.
type Settings struct {
	// PlainHTTP uses HTTP. A registry on loopback that is not listed at all
	// is tried by HTTP first.
	PlainHTTP bool
	// InsecureSkipVerify accepts any certificate of the registry.
	InsecureSkipVerify bool
	// CAFile is a PEM file of certificate authorities to trust besides the system's.
	CAFile string
	// Mirrors are hosts asked before the registry itself, in order: host[:port]
	// or a URL http(s)://host[:port]. The registry's credentials are not sent
	// to them.
	Mirrors []string
	// TokenHosts are the host[:port] of token services that the registry may send
	// us to although they have private or loopback addresses. Those with public
	// addresses, or on the registry's own host, need no entry. Those named are met as the
	// registry is: with its client certificates and InsecureSkipVerify.
	TokenHosts []string
	// MaxConcurrentDownloads, if not 0, is used instead of Config's.
	MaxConcurrentDownloads int
	// Lazy says that layers which can be shown before they are here are to be.
	Lazy bool
}

// Auth is the credentials for one operation (CRI's AuthConfig). At most one of
// Username/Password, IdentityToken (OAuth2 refresh token) and RegistryToken
// (bearer token) is used, in the order RegistryToken, IdentityToken, Username.
type Auth struct {
	Username, Password, IdentityToken, RegistryToken string
}

// Client is the way to all registries. Its methods may be called concurrently.
type Client struct {
	cfg        Config
	transports transports
	slots      slots
}

// NewClient checks the settings and reads the files that they name; it connects to no one.
func NewClient(cfg Config) (*Client, error) {
	if cfg.MaxConcurrentDownloads <= 0 {
		cfg.MaxConcurrentDownloads = 6
	}
	if cfg.StallTimeout <= 0 {
		cfg.StallTimeout = 30 * time.Second
	}
	if cfg.ProgressTimeout <= 0 {
		cfg.ProgressTimeout = 5 * time.Minute
	}
	c := &Client{cfg: cfg}
	c.slots.each = c.maxDownloads
	c.transports.guard.on = cfg.OnlyListedLoopback
	for registry := range cfg.Settings {
		hosts, err := c.configured(registry)
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", registry, err)
		}
		for _, h := range hosts {
			if _, err := h.tls(); err != nil {
				return nil, fmt.Errorf("registry %s: %w", registry, err)
			}
		}
	}
	return c, nil
}

// Close closes idle connections. Operations under way go on.
func (c *Client) Close() { c.transports.close() }

// Lazy is the setting of that name of a registry.
func (c *Client) Lazy(registry string) bool { return c.cfg.Settings[registry].Lazy }

// Config is what the client was made with.
func (c *Client) Config() Config { return c.cfg }

func (c *Client) maxDownloads(registry string) int {
	if n := c.cfg.Settings[registry].MaxConcurrentDownloads; n > 0 {
		return n
	}
	return c.cfg.MaxConcurrentDownloads
}

// Repository is one repository for the time of one operation.
type Repository struct {
	domain, path string
	endpoints    []*endpoint
	client       *Client
	anonymous    bool
}

// Repository prepares an operation. It reads the registry's hosts.toml, but does no
// network I/O. The error is about that file.
func (c *Client) Repository(domain, path string, a Auth) (*Repository, error) {
	hosts, err := c.hosts(domain)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", domain, err)
	}
	r := &Repository{domain: domain, path: path, client: c, anonymous: a == Auth{} && c.cfg.DockerConfig == ""}
	for _, h := range hosts {
		e, err := c.newEndpoint(domain, h, a)
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", domain, err)
		}
		r.endpoints = append(r.endpoints, e)
	}
	return r, nil
}

// String is domain and path.
func (r *Repository) String() string { return r.domain + "/" + r.path }

// Domain is the registry's name, as references have it.
func (r *Repository) Domain() string { return r.domain }

// HasMirrors says whether there is more than one host.
func (r *Repository) HasMirrors() bool { return len(r.endpoints) > 1 }

// able are the hosts that have a capability, in order. A mirror that could not be reached
// is passed over for the rest of the operation.
func (r *Repository) able(c Capability) ([]*endpoint, error) {
	var all []*endpoint
	for _, e := range r.endpoints {
		if e.Can&c != 0 {
			all = append(all, e)
		}
	}
	up := slices.DeleteFunc(slices.Clone(all), func(e *endpoint) bool { return e.down.Load() })
	if len(up) > 0 {
		all = up
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no host of registry %s may %s: add the capability to one in its hosts.toml", ErrUnavailable, r.domain, c)
	}
	return all, nil
}

// dockerHub is what Docker Hub is called in references, dockerHubHost where its API is.
const (
	dockerHub     = "docker.io"
	dockerHubHost = "registry-1.docker.io"
)

// apiHost is the host that serves a registry when nothing else is configured.
func apiHost(registry string) string {
	if registry == dockerHub {
		return dockerHubHost
	}
	return registry
}

// Capability is what a host may be asked for.
type Capability uint

// Capabilities, as hosts.toml calls them.
const (
	Pull       Capability = 1 << iota // documents and blobs by digest
	Resolve                           // what a tag names
	Push                              // uploads
	Referrers                         // what refers to a digest
	everything = Pull | Resolve | Push | Referrers
)

var capabilityNames = []string{"pull", "resolve", "push", "referrers"}

// String lists the names.
func (c Capability) String() string {
	var names []string
	for i, name := range capabilityNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
