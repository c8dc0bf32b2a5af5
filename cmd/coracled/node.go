package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/cgroupwarm"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

// shimName is the shim's executable, installed beside ours.
const shimName = "containerd-shim-coracle-v1"

// node is all parts below CRI, started and recovered. Whoever makes one holds the
// locks of both directories.
type node struct {
	config    config.Config
	log       *slog.Logger
	snapshots *snapshot.Store
	images    *image.Store
	network   *network.Manager
	shim      *client.Client
	pods      *pod.Manager

	// closers end what was started, the last first.
	closers []func() error
}

// startNode starts the parts, each after those it builds on. respawn is the arguments
// with which the keeper starts the daemon again; nil if it must not.
func startNode(ctx context.Context, c config.Config, respawn []string, log *slog.Logger) (*node, error) {
	n := &node{config: c, log: log}
	if err := n.start(ctx, respawn); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) start(ctx context.Context, respawn []string) error {
	c := n.config
	// A removed image's layers stay while containers run from them, and go with
	// the last of these.
	garbage := newCollector()
	n.snapshots = snapshot.New(snapshot.Config{Root: filepath.Join(c.Root, "snapshots"), Freed: garbage.poke, Log: n.log})
	if err := n.snapshots.Start(ctx); err != nil {
		return err
	}
	n.closers = append(n.closers, n.snapshots.Close)

	layers := layerStore{n.snapshots}
	var err error
	n.images, err = image.Open(image.Config{
		Root:                   filepath.Join(c.Root, "images"),
		Layers:                 layers,
		LayerUsage:             layers.usage,
		Registries:             registries(c.Image.Registry),
		MaxConcurrentDownloads: c.Image.MaxConcurrentDownloads,
		Log:                    n.log,
	})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.images.Close)
	garbage.start(n.images.GC, n.log)
	n.closers = append(n.closers, garbage.close)

	if err := n.startNetwork(ctx); err != nil {
		return err
	}
	if err := n.startShim(ctx, respawn); err != nil {
		return err
	}
	n.pods = pod.New(pod.Options{
		StateDir:        c.State,
		ShimBinary:      n.shimBinary(),
		CgroupDriver:    cgroupDriver(c),
		CgroupRoot:      cgroupRoot(c),
		RuntimeHandlers: append([]string{}, c.Runtime.Handlers...),
	}, pod.Deps{
		Shim: n.shim, Images: n.images, Snapshots: n.snapshots, Network: n.network, Starting: cgroupwarm.Keep, Log: n.log,
	})
	n.closers = append(n.closers, n.pods.Close)
	return n.pods.Start(ctx)
}

func (n *node) startNetwork(ctx context.Context) error {
	c := n.config.Network
	n.network = network.New(network.Config{
		StateDir:   filepath.Join(n.config.State, "network"),
		BridgeName: c.Bridge,
		Subnets:    prefixes(c.Subnets),
		MTU:        c.MTU,
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
	return env
}

// shimBinary is the configured shim or the one beside our executable.
func (n *node) shimBinary() string {
	if n.config.Shim.Binary != "" {
		return n.config.Shim.Binary
	}
	self, err := os.Executable()
	if err != nil {
		return shimName // the client says that it is missing
	}
	return filepath.Join(filepath.Dir(self), shimName)
}

func registries(in map[string]config.Registry) map[string]image.Registry {
	out := make(map[string]image.Registry, len(in))
	for host, r := range in {
		out[host] = image.Registry{
			PlainHTTP: r.PlainHTTP, InsecureSkipVerify: r.InsecureSkipVerify, CAFile: r.CAFile,
			Mirrors: r.Mirrors, TokenHosts: r.TokenHosts,
		}
	}
	return out
}

func cgroupDriver(c config.Config) pod.CgroupDriver {
	if c.Cgroup.Driver == "systemd" {
		return pod.Systemd
	}
	return pod.Cgroupfs
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
