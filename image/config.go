package image

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/coracle-project/coracle/image/unpack"
	"github.com/opencontainers/go-digest"
)

// Config is what a Store is opened with.
type Config struct {
	// Root is the directory of the OCI layout; it is created if missing.
	Root string
	// Layers is where layers are unpacked.
	Layers LayerStore
	// LayerUsage, if not nil, tells from memory what an unpacked layer takes.
	LayerUsage func(digest.Digest) (bytes, inodes int64, err error)
	// Registries are settings per registry, by the host[:port] of references
	// (docker.io for Docker Hub). Those not listed are reached by HTTPS, on
	// loopback addresses by HTTP.
	Registries map[string]Registry
	// MaxConcurrentDownloads is how many layers are fetched at once from one
	// registry, of all pulls together. Default 6.
	MaxConcurrentDownloads int
	// StallTimeout is how long a registry may be silent before the connection
	// is given up and retried. Default 30 s.
	StallTimeout time.Duration
	// Layer bounds each layer while it is unpacked.
	Layer unpack.Limits
	// Log takes warnings about what recovery and garbage collection found. Default slog.Default().
	Log *slog.Logger
}

// Registry is how one registry is reached.
type Registry struct {
	// PlainHTTP uses HTTP. A registry on loopback that is not listed at all
	// is tried by HTTP first.
	PlainHTTP bool
	// InsecureSkipVerify accepts any certificate.
	InsecureSkipVerify bool
	// CAFile is a PEM file of certificate authorities to trust besides the system's.
	CAFile string
	// Mirrors are hosts asked before the registry itself, in order: host[:port]
	// or a URL http(s)://host[:port]. The registry's credentials are not sent
	// to them.
	Mirrors []string
	// TokenHosts are the host[:port] of token services that the registry may send
	// us to although they have private or loopback addresses. Those with public
	// addresses, or on the registry's own host, need no entry.
	TokenHosts []string
}

// Limits of what a registry may make us hold in memory.
const (
	maxManifestBytes = 4 << 20
	maxConfigBytes   = 8 << 20
	maxLayers        = 500 // overlayfs takes no more
	maxIndexDepth    = 4
	maxManifestReads = 16 // of one pull, over nested indexes
)

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.Root) {
		return c, fmt.Errorf("image store: root %q must be an absolute path", c.Root)
	}
	if c.Layers == nil {
		return c, errors.New("image store: no layer store given")
	}
	if c.MaxConcurrentDownloads <= 0 {
		c.MaxConcurrentDownloads = 6
	}
	if c.StallTimeout <= 0 {
		c.StallTimeout = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Layer = c.Layer.WithDefaults()
	for host, r := range c.Registries {
		for _, m := range r.Mirrors {
			if _, _, err := parseMirror(m); err != nil {
				return c, fmt.Errorf("image store: mirror %q of registry %s: %w", m, host, err)
			}
		}
	}
	return c, nil
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
