package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/coracle-project/coracle/internal/stricttoml"
)

const (
	scheme = "unix://"
	// maxSocket is sun_path less its final zero byte (unix(7)).
	maxSocket = 107
	// maxInterface is IFNAMSIZ less its final zero byte.
	maxInterface = 15
	maxDownloads = 64
	maxMTU       = 65535
	// minMTU is the least that IPv6 allows.
	minMTU = 1280
	// minProgressTimeout leaves room for the silence of one connection that is
	// found dead (30 s) and tried again.
	minProgressTimeout = time.Minute
	// maxLazyTimeout is how long a process may hang that no signal ends.
	minLazyTimeout = time.Second
	maxLazyTimeout = 5 * time.Minute
)

// Check reports every setting whose value cannot be used, each with its key.
func (c *Config) Check() error {
	return errors.Join(
		c.checkPlaces(),
		oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error"),
		oneOf("log.format", c.Log.Format, "text", "json"),
		oneOf("shim.scope", c.Shim.Scope, "node", "pod"),
		oneOf("shim.engine", c.Shim.Engine, "coracle", "libcontainer"),
		optionalPath("shim.binary", c.Shim.Binary),
		checkSupervise(c.Shim.Supervise),
		oneOf("cgroup.driver", c.Cgroup.Driver, "auto", "cgroupfs", "systemd"),
		checkCgroupRoot(c.Cgroup),
		c.Network.check(),
		c.Image.check(),
		c.Snapshot.check(),
		c.Runtime.check(),
		c.NRI.check(),
		paths("runtime.cdi_spec_dirs", c.Runtime.CDISpecDirs),
		checkUlimits(c.Runtime.Ulimits),
		checkNames("runtime.restore_bases", c.Runtime.RestoreBases),
		checkLoopback("stream.address", c.Stream.Address),
		optionalHostPort("metrics.address", c.Metrics.Address),
		c.Tracing.check(),
	)
}

// SlogLevel is log.level, which Check has seen to be one.
func (l Log) SlogLevel() slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level))
	return level
}

// badValue is a setting that cannot be used as it is.
type badValue struct{ key, text string }

func (b *badValue) Error() string { return b.key + ": " + b.text }

func wrong(key, format string, args ...any) error {
	return &badValue{key, fmt.Sprintf(format, args...)}
}

func oneOf(key, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return wrong(key, "%q is none of %s", value, strings.Join(known, ", "))
}

func (c *Config) checkPlaces() error {
	if err := errors.Join(path("root", c.Root), path("state", c.State)); err != nil {
		return err
	}
	if c.Root == c.State {
		return wrong("state", "%q is also root", c.State)
	}
	if c.GRPC.Address != "" {
		socket, ok := strings.CutPrefix(c.GRPC.Address, scheme)
		if !ok {
			return wrong("grpc.address", "%q does not begin with %s", c.GRPC.Address, scheme)
		}
		if err := path("grpc.address", socket); err != nil {
			return err
		}
	}
	if s := c.Socket(); len(s) > maxSocket {
		return wrong("grpc.address", "%q is longer than the %d bytes that a socket's path can have", s, maxSocket)
	}
	return nil
}

// path wants an absolute path in its shortest form.
func path(key, value string) error {
	switch {
	case !filepath.IsAbs(value):
		return wrong(key, "%q is not an absolute path", value)
	case filepath.Clean(value) != value:
		return wrong(key, "%q: write %q", value, filepath.Clean(value))
	case value == "/":
		return wrong(key, "cannot be /")
	case strings.ContainsRune(value, 0):
		return wrong(key, "%q contains a zero byte", value)
	}
	return nil
}

func paths(key string, values []string) error {
	var errs []error
	for _, value := range values {
		errs = append(errs, path(key, value))
	}
	return errors.Join(errs...)
}

func optionalPath(key, value string) error {
	if value == "" {
		return nil
	}
	return path(key, value)
}

func checkSupervise(v any) error {
	if _, ok := v.(bool); ok || v == "auto" {
		return nil
	}
	return wrong("shim.supervise", "%v is none of true, false, \"auto\"", v)
}

func checkCgroupRoot(c Cgroup) error {
	if c.Driver != "systemd" {
		return optionalPath("cgroup.root", c.Root)
	}
	if c.Root != "" && (!strings.HasSuffix(c.Root, ".slice") || strings.Contains(c.Root, "/")) {
		return wrong("cgroup.root", "%q is not the name of a slice, which the systemd driver needs", c.Root)
	}
	return nil
}

func (n *Network) check() error {
	errs := []error{
		checkInterface("network.name", n.Name),
		checkSubnets("network.subnets", n.Subnets),
		checkRanges("network.allow_from", n.AllowFrom),
		path("network.cni_conf_dir", n.CNIConfDir),
	}
	if n.MTU != 0 && (n.MTU < minMTU || n.MTU > maxMTU) {
		errs = append(errs, wrong("network.mtu", "%d is neither 0 nor from %d to %d", n.MTU, minMTU, maxMTU))
	}
	return errors.Join(append(errs, paths("network.cni_bin_dirs", n.CNIBinDirs))...)
}

// checkInterface wants a name that the kernel takes for a link (dev_valid_name) and
// nftables for a table.
func checkInterface(key, name string) error {
	if name == "" || len(name) > maxInterface {
		return wrong(key, "%q does not have 1 to %d characters", name, maxInterface)
	}
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789-_", r)) {
			return wrong(key, "%q: only letters, digits, - and _ after a letter", name)
		}
	}
	return nil
}

func checkRanges(key string, ranges []string) error {
	for _, s := range ranges {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return wrong(key, "%q is not an address range such as 10.85.0.0/16", s)
		}
		if p.Masked() != p {
			return wrong(key, "%q has bits beyond its length; write %s", s, p.Masked())
		}
	}
	return nil
}

// checkSubnets wants at most one range of each family, and at least one.
func checkSubnets(key string, subnets []string) error {
	if len(subnets) == 0 {
		return wrong(key, "is empty")
	}
	if err := checkRanges(key, subnets); err != nil {
		return err
	}
	var v4, v6 int
	for _, s := range subnets {
		p := netip.MustParsePrefix(s)
		// One address each for the network, the host, a pod and broadcast.
		if p.Addr().BitLen()-p.Bits() < 2 {
			return wrong(key, "%q has no room for pods", s)
		}
		if p.Addr().Is4() {
			v4++
		} else {
			v6++
		}
	}
	if v4 > 1 || v6 > 1 {
		return wrong(key, "%q has two ranges of one family", subnets)
	}
	return nil
}

func (s *Snapshot) check() error {
	errs := []error{oneOf("snapshot.driver", s.Driver, "overlay", "erofs", "native")}
	if s.MaxBytes < 0 {
		errs = append(errs, wrong("snapshot.max_bytes", "%d is negative", s.MaxBytes))
	}
	if s.MaxInodes < 0 {
		errs = append(errs, wrong("snapshot.max_inodes", "%d is negative", s.MaxInodes))
	}
	return errors.Join(errs...)
}

// checkWater wants marks that a disk can be at, the low one below.
func (i *Image) checkWater() error {
	switch {
	case i.GCHighWater == 0:
		return nil
	case i.GCHighWater < 2 || i.GCHighWater > 100:
		return wrong("image.gc_high_water", "%d is neither 0 nor from 2 to 100", i.GCHighWater)
	case i.GCLowWater < 1 || i.GCLowWater >= i.GCHighWater:
		return wrong("image.gc_low_water", "%d is not from 1 to %d, below gc_high_water", i.GCLowWater, i.GCHighWater-1)
	}
	return nil
}

// checkNames wants names that say their registry, as images are listed.
func checkNames(key string, names []string) error {
	for _, name := range names {
		if prefix := strings.TrimSuffix(name, "*"); !strings.Contains(prefix, "/") || strings.ContainsAny(prefix, "* \t\n") {
			return wrong(key, "%q is neither a full name (registry/repository:tag) nor a prefix followed by *", name)
		}
	}
	return nil
}

func (i *Image) check() error {
	errs := []error{i.checkWater(), checkNames("image.pinned", i.Pinned)}
	if n := i.MaxConcurrentDownloads; n < 1 || n > maxDownloads {
		errs = append(errs, wrong("image.max_concurrent_downloads", "%d is not from 1 to %d", n, maxDownloads))
	}
	if d, err := time.ParseDuration(i.PullProgressTimeout); err != nil || d < minProgressTimeout {
		errs = append(errs, wrong("image.image_pull_progress_timeout", "%q is not a duration of at least %s, such as 5m", i.PullProgressTimeout,
			minProgressTimeout))
	}
	if d, err := time.ParseDuration(i.LazyReadTimeout); err != nil || d < minLazyTimeout || d > maxLazyTimeout {
		errs = append(errs, wrong("image.lazy_read_timeout", "%q is not a duration from %s to %s, such as 30s", i.LazyReadTimeout, minLazyTimeout,
			maxLazyTimeout))
	}
	if r := i.ShortNameRegistry; r != "" {
		errs = append(errs, checkShortNameRegistry("image.short_name_registry", r))
	}
	for _, dir := range i.CertsDirs {
		errs = append(errs, path("image.certs_dirs", dir))
	}
	errs = append(errs, optionalPath("image.docker_config", i.DockerConfig), optionalPath("image.policy", i.Policy),
		optionalPath("image.decryption_keys", i.DecryptionKeys))
	for _, host := range slices.Sorted(maps.Keys(i.Registry)) {
		r := i.Registry[host]
		key := stricttoml.KeyName([]string{"image", "registry", host})
		errs = append(errs, checkRegistry(key, host), optionalPath(key+".ca_file", r.CAFile))
		if n := r.MaxConcurrentDownloads; n < 0 || n > maxDownloads {
			errs = append(errs, wrong(key+".max_concurrent_downloads", "%d is neither 0 nor from 1 to %d", n, maxDownloads))
		}
		for _, m := range r.Mirrors {
			errs = append(errs, checkMirror(key+".mirrors", m))
		}
		for _, h := range r.TokenHosts {
			errs = append(errs, checkRegistry(key+".token_hosts", h))
		}
	}
	return errors.Join(errs...)
}

// checkShortNameRegistry wants what a reference can begin with and still name a registry.
func checkShortNameRegistry(key, prefix string) error {
	const sample = "/team/app" // of one part, Docker Hub's names get another before it
	named, err := reference.ParseNormalizedNamed(prefix + sample)
	if err != nil || named.String() != prefix+sample {
		return wrong(key, "%q is not a registry with a path if need be, such as docker.io or registry.example/mirror", prefix)
	}
	return nil
}

// checkMirror wants a registry, with or without a scheme.
func checkMirror(key, mirror string) error {
	for _, s := range []string{"http://", "https://"} {
		if host, ok := strings.CutPrefix(mirror, s); ok {
			return checkRegistry(key, strings.TrimSuffix(host, "/"))
		}
	}
	return checkRegistry(key, mirror)
}

// checkRegistry wants host or host:port.
func checkRegistry(key, host string) error {
	name := host
	if strings.ContainsRune(strings.TrimPrefix(host, "["), ':') {
		if err := checkHostPort(key, host); err != nil {
			return err
		}
		name, _, _ = net.SplitHostPort(host)
	}
	if name == "" || strings.ContainsAny(name, "/@?# \t\n\x00") {
		return wrong(key, "%q is not host or host:port", host)
	}
	return nil
}

func checkHostPort(key, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return wrong(key, "%q is not host:port", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return wrong(key, "%q: port %q is not a number up to 65535", address, port)
	} else if host == "" && n == 0 {
		return wrong(key, "%q has neither host nor port", address)
	}
	return nil
}

// checkLoopback wants an address that no one else on the network reaches.
func checkLoopback(key, address string) error {
	if err := checkHostPort(key, address); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(address)
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return wrong(key, "%q is not on loopback, and what is served here is not encrypted; write 127.0.0.1:%s", address, port)
}

func optionalHostPort(key, address string) error {
	if address == "" {
		return nil
	}
	return checkHostPort(key, address)
}

func (t *Tracing) check() error {
	var errs []error
	if n := t.SamplePercent; n < 0 || n > 100 {
		errs = append(errs, wrong("tracing.sample_percent", "%d is not from 0 to 100", n))
	}
	if t.Endpoint != "" {
		u, err := url.Parse(t.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" {
			errs = append(errs, wrong("tracing.endpoint", "%q is not http://host:port or https://host:port", t.Endpoint))
		}
	}
	return errors.Join(errs...)
}

func (n *NRI) check() error {
	err := errors.Join(path("nri.socket", n.Socket), path("nri.plugin_dir", n.PluginDir), path("nri.plugin_config_dir", n.PluginConfigDir))
	if err == nil && len(n.Socket) > maxSocket {
		return wrong("nri.socket", "%q is longer than the %d bytes that a socket's path can have", n.Socket, maxSocket)
	}
	return err
}
