package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/layers"
	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/image/trust"
	"github.com/coracle-project/coracle/internal/cgroupwarm"
	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/nri"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

// shimName is the shim's executable, installed next to ours.
const shimName = "containerd-shim-coracle-v1"

// node is all parts below CRI, started and recovered. The caller of
// startNode holds the locks of both directories.
type node struct {
	config    config.Config
	log       *slog.Logger
	snapshots *snapshot.Store
	layers    *layers.Store // in that one, and in those of handlers
	images    *image.Store
	lazy      *lazy.Client
	network   *network.Manager
	shim      *client.Client
	pods      *pod.Manager

	// live is the settings that a reload changes; those of config hold from start to end.
	live atomic.Pointer[live]

	// closers end what was started, the last first.
	closers []func() error
}

// startNode starts the parts, each after those it builds on. respawn is the arguments
// with which the keeper starts the daemon again; nil if it must not.
func startNode(ctx context.Context, c config.Config, respawn []string, log *slog.Logger) (*node, error) {
	// First of all: do not touch the records of a newer daemon.
	records, err := state.ReadRecords(c.State)
	if err != nil {
		return nil, err
	}
	n := &node{config: c, log: log}
	n.live.Store(&live{config: c, pods: podHandlers(c.Runtime)})
	if err := n.start(ctx, records, respawn); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) start(ctx context.Context, records *state.Records, respawn []string) error {
	c := n.config
	// A removed image's layers stay while containers run from them, and go with
	// the last of these.
	garbage := image.NewCollector()
	n.snapshots = snapshot.New(snapshot.Config{
		Root:   filepath.Join(c.Root, "snapshots"),
		Driver: snapshot.DriverName(c.Snapshot.Driver),
		Limit:  snapshot.Usage{Bytes: c.Snapshot.MaxBytes, Inodes: c.Snapshot.MaxInodes},
		Freed:  garbage.Poke,
		Shown:  n.lazyShown(ctx),
		Log:    n.log,
	})
	if err := n.snapshots.Start(ctx); err != nil {
		return err
	}
	n.closers = append(n.closers, n.snapshots.Close)

	n.layers = layers.New(layers.Config{
		Root: filepath.Join(c.Root, "snapshotters"), Node: n.snapshots, Driver: snapshot.DriverName(c.Snapshot.Driver),
		Limit: snapshot.Usage{Bytes: c.Snapshot.MaxBytes, Inodes: c.Snapshot.MaxInodes}, Freed: garbage.Poke, Log: n.log,
	})
	n.closers = append(n.closers, n.layers.Close)
	if err := n.layers.Start(ctx, wantedSnapshotters(c.Runtime)); err != nil {
		return err
	}

	lazily := &layers.Lazy{
		Snapshots: n.snapshots, Client: n.lazy, Timeout: func() time.Duration { return n.live.Load().config.Image.LazyTimeout() },
	}
	if err := n.startImages(lazily, garbage); err != nil {
		return err
	}
	if err := n.startNetwork(ctx); err != nil {
		return err
	}
	if err := n.startShim(ctx, respawn); err != nil {
		return err
	}
	if err := lazily.Keep(ctx, n.startLazy); err != nil {
		n.log.Error("layers that were pulled lazily may be lost with their process", "err", err)
	}
	if err := n.startPeers(); err != nil {
		return err
	}
	return n.startPods(ctx, records, layers.NewRoots(n.layers, n.images, garbage.Poke))
}

func (n *node) startImages(lazily *layers.Lazy, garbage *image.Collector) (err error) {
	c := n.config.Image
	n.images, err = image.Open(image.Config{
		Root:       filepath.Join(n.config.Root, "images"),
		Layers:     n.layers,
		Lazy:       lazily,
		Registries: registries(c),

		Policy:            policy(c),
		Keys:              crypt.Keys{Dir: c.DecryptionKeys},
		ShortNameRegistry: c.ShortNameRegistry,
		KeepBlobs:         c.KeepBlobs,
		Pinned:            c.Pinned,
		HighWater:         c.GCHighWater,
		LowWater:          c.GCLowWater,
		Log:               n.log,
	})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.images.Close)
	garbage.Start(n.images.GC, n.log)
	n.closers = append(n.closers, garbage.Close)
	return nil
}

func (n *node) startPods(ctx context.Context, records *state.Records, roots *layers.Roots) error {
	c := n.config
	deps := pod.Deps{Shim: n.shim, Images: n.images, Snapshots: roots, Network: n.network, Starting: n.starting(), Log: n.log}
	var plugins *nri.Plugins
	if c.NRI.Enabled {
		var err error
		plugins, err = nri.New(nri.Config{
			Socket: c.NRI.Socket, PluginDir: c.NRI.PluginDir, PluginConfigDir: c.NRI.PluginConfigDir,
			Version: version.Number(), Log: n.log,
		})
		if err != nil {
			return err
		}
		n.closers = append(n.closers, plugins.Close)
		deps.Plugins = plugins
	}
	n.pods = pod.New(pod.Options{
		StateDir:     c.State,
		Records:      records,
		ShimBinary:   n.shimBinary(),
		CgroupDriver: cgroupDriver(c),
		CgroupRoot:   cgroupRoot(c),
		Handlers:     func() map[string]podconfig.Handler { return n.live.Load().pods },
		Restore:      c.Runtime.Restore,
		RestoreBases: c.Runtime.RestoreBases,
		Rlimits:      c.Runtime.Rlimits(),
		CDISpecDirs:  append([]string{}, c.Runtime.CDISpecDirs...),
	}, deps)
	n.closers = append(n.closers, n.pods.Close)
	if err := n.pods.Start(ctx); err != nil || plugins == nil {
		return err
	}
	return plugins.Start(n.pods)
}

func (n *node) startNetwork(ctx context.Context) error {
	c := n.config.Network
	n.network = network.New(network.Config{
		StateDir:   filepath.Join(n.config.State, "network"),
		Name:       c.Name,
		Subnets:    prefixes(c.Subnets),
		MTU:        c.MTU,
		AllowFrom:  prefixes(c.AllowFrom),
		CNIConfDir: c.CNIConfDir,
		CNIBinDirs: c.CNIBinDirs,
		Log:        n.log,
	})
	if err := n.network.Start(ctx); err != nil {
		return err
	}
	n.closers = append(n.closers, n.network.Close)
	return nil
}

func (n *node) startShim(ctx context.Context, respawn []string) error {
	var again *client.Respawn
	if respawn != nil && n.config.Supervised(os.Getenv("INVOCATION_ID") != "") {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find own executable: %w", err)
		}
		again = &client.Respawn{Path: self, Args: append([]string{self}, respawn...), Env: environment()}
	}
	var err error
	n.shim, err = client.New(client.Config{
		Binary:        n.shimBinary(),
		StateDir:      filepath.Join(n.config.State, "shim"),
		Scope:         client.Scope(n.config.Shim.Scope),
		Engine:        n.config.Shim.Engine,
		SystemdCgroup: n.config.Cgroup.Driver == "systemd",
		Daemon:        again,
		Log:           n.log,
	})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.shim.Close)
	return n.shim.Start(ctx)
}

// starting is what is done when a pod or container starts to be made. Only libcontainer moves
// processes between cgroups in the way that has to be kept warm.
func (n *node) starting() func() {
	if n.config.Shim.Engine == "libcontainer" {
		return new(cgroupwarm.Warmer).Keep
	}
	return nil
}

// environment is what a respawned daemon gets of ours: where programs, temporary
// files, certificates and proxies are.
func environment() []string {
	var env []string
	for _, name := range []string{
		"PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return append(env, fault.Environ()...)
}

// shimBinary is the configured shim or the one next to our executable.
func (n *node) shimBinary() string {
	if n.config.Shim.Binary != "" {
		return n.config.Shim.Binary
	}
	return sibling(shimName)
}

// sibling is a program in our executable's directory.
func sibling(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name // starting it will say that it is missing
	}
	return filepath.Join(filepath.Dir(self), name)
}

func registries(c config.Image) registry.Config {
	settings := make(map[string]registry.Settings, len(c.Registry))
	for host, r := range c.Registry {
		settings[host] = registry.Settings{
			PlainHTTP: r.PlainHTTP, InsecureSkipVerify: r.InsecureSkipVerify, CAFile: r.CAFile,
			Mirrors: r.Mirrors, TokenHosts: r.TokenHosts, MaxConcurrentDownloads: r.MaxConcurrentDownloads,
			Lazy: r.Lazy,
		}
	}
	return registry.Config{
		Settings:               settings,
		OnlyListedLoopback:     c.OnlyListedLoopback,
		CertsDirs:              c.CertsDirs,
		DockerConfig:           c.DockerConfig,
		MaxConcurrentDownloads: c.MaxConcurrentDownloads,
		ProgressTimeout:        c.ProgressTimeout(),
	}
}

// defaultPolicy is where a signature policy is looked for if the settings name none.
const defaultPolicy = "/etc/coracle/policy.toml"

func policy(c config.Image) trust.File {
	if c.Policy == "" {
		return trust.File{Path: defaultPolicy, Optional: true}
	}
	return trust.File{Path: c.Policy}
}

func cgroupDriver(c config.Config) podconfig.CgroupDriver {
	if c.Cgroup.Driver == "systemd" {
		return podconfig.Systemd
	}
	return podconfig.Cgroupfs
}

// cgroupRoot is where pods go that name no parent.
func cgroupRoot(c config.Config) string {
	switch {
	case c.Cgroup.Root != "":
		return c.Cgroup.Root
	case c.Cgroup.Driver == "systemd":
		return "system.slice"
	}
	return "/coracle"
}

// prefixes converts ranges that config has checked.
func prefixes(in []string) []netip.Prefix {
	out := make([]netip.Prefix, len(in))
	for i, s := range in {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// close ends the parts. Containers, and the pods' network, stay.
func (n *node) close() error {
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		errs = append(errs, n.closers[i]())
	}
	n.closers = nil
	return errors.Join(errs...)
}
