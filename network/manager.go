package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// Config is a Manager's settings; zero values have the defaults given.
type Config struct {
	// StateDir holds the records; on a tmpfs, for they are no truth after a
	// reboot. It must be given.
	StateDir string
	// Name is that of the built-in network's nftables table, and tells its links from another
	// daemon's: "coracle0". Earlier releases had a bridge of that name.
	Name string
	// Subnets are the pods' address ranges in the built-in network, at most one
	// per family: 10.85.0.0/16 and fd85:c0ac:1e00::/64. The first address of each is the host's.
	Subnets []netip.Prefix
	// MTU of the pods' links; 0 is that of the host's default route.
	MTU int
	// AllowFrom are ranges beyond this host whose packets may go to pods by the pods' own
	// addresses: none. Answers and host ports need no permission.
	AllowFrom []netip.Prefix
	// CNIConfDir is where a CNI configuration takes precedence over the built-in
	// network: "/etc/cni/net.d".
	CNIConfDir string
	// CNIBinDirs are where plugins are: "/opt/cni/bin" and "/usr/lib/cni".
	CNIBinDirs []string
	// CNICacheDir is libcni's: "cni-cache" in StateDir.
	CNICacheDir string
	Log         *slog.Logger // slog.Default() if nil
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "coracle0")
	if c.Subnets == nil {
		c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.85.0.0/16"), netip.MustParsePrefix("fd85:c0ac:1e00::/64")}
	}
	c.CNIConfDir = cmp.Or(c.CNIConfDir, "/etc/cni/net.d")
	if c.CNIBinDirs == nil {
		c.CNIBinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	c.CNICacheDir = cmp.Or(c.CNICacheDir, filepath.Join(c.StateDir, "cni-cache"))
	c.Log = cmp.Or(c.Log, slog.Default())
	return c
}

// check says what is wrong with the settings.
func (c Config) check() error {
	switch {
	case !filepath.IsAbs(c.StateDir):
		return fmt.Errorf("%w: network state directory %q is not an absolute path", ErrConfig, c.StateDir)
	case len(c.Name) > 15 || strings.ContainsAny(c.Name, "/ \t\n:") || c.Name == "." || c.Name == "..":
		return fmt.Errorf("%w: network name %q: at most 15 bytes, without '/', ':' and blanks", ErrConfig, c.Name)
	case c.MTU != 0 && (c.MTU < 1280 || c.MTU > 65535):
		return fmt.Errorf("%w: MTU %d is not between 1280 and 65535", ErrConfig, c.MTU)
	}
	for _, s := range c.AllowFrom {
		if !s.IsValid() || s.Addr().Is4In6() {
			return fmt.Errorf("%w: %s, from which pods may be reached, is not an address range", ErrConfig, s)
		}
	}
	return checkSubnets(c.Subnets)
}

// checkSubnets wants at most one usable range per family.
func checkSubnets(subnets []netip.Prefix) error {
	var v4, v6 int
	for _, s := range subnets {
		if _, err := newPool(s); err != nil {
			return err
		}
		if s.Addr().Is4() {
			v4++
		} else {
			v6++
		}
	}
	if len(subnets) == 0 || v4 > 1 || v6 > 1 {
		return fmt.Errorf("%w: pod subnets %v: give one per address family", ErrConfig, subnets)
	}
	return nil
}

// Manager is the Network of a node: CNI when a configuration is there, else the
// built-in network. A pod stays with the one that it was set up by.
type Manager struct {
	config  Config
	builtin *builtin
	cni     *cniNet
}

var _ Network = (*Manager)(nil)

// New returns a Manager; it does no I/O. Start must be called before anything else.
func New(c Config) *Manager {
	c = c.withDefaults()
	return &Manager{
		config:  c,
		builtin: newBuiltin(c),
		cni:     newCNI(c),
	}
}

// SetCNI says again where CNI configuration and plugins are. Pods that are connected keep the
// configuration that they were connected with.
func (m *Manager) SetCNI(confDir string, binDirs []string) {
	c := m.config
	c.CNIConfDir, c.CNIBinDirs = confDir, binDirs
	m.cni.at.Store(newPlugins(c))
	m.cni.follow.Follow(confDir)
}

// Start reads the records and the CNI configuration, which it watches from then on. It changes
// nothing on the host: addresses and rules are made for the first pod. Start moves a damaged
// record to the directory "damaged" and rebuilds it from the kernel's state or the CNI cache. If a
// newer daemon wrote a record, Start returns a *recordfile.NewerError and changes nothing.
func (m *Manager) Start(context.Context) error {
	if err := m.config.check(); err != nil {
		return err
	}
	bridged, err := m.builtin.records.load()
	if err != nil {
		return err
	}
	plugged, err := m.cni.records.load()
	if err != nil {
		return err
	}
	subnets, err := m.startSubnets()
	if err != nil {
		return err
	}
	m.cni.start(plugged)
	if err := m.builtin.start(subnets, bridged); err != nil {
		return err
	}
	m.cni.follow.Start(m.config.CNIConfDir)
	return nil
}

// Close finishes what Teardown left to the background, stops plugins that are being asked for their
// status, and follows the CNI configuration no more. Pods stay connected.
func (m *Manager) Close() error {
	m.builtin.close()
	m.cni.asks.Close()
	return m.cni.follow.Close()
}

// Setup implements Network.
func (m *Manager) Setup(ctx context.Context, p Pod) (Result, error) {
	n, err := m.networkOf(p.ID)
	if err != nil {
		return Result{}, err
	}
	return n.Setup(ctx, p)
}

// networkOf returns the network that has the pod, or will have it.
func (m *Manager) networkOf(podID string) (Network, error) {
	if _, ok := m.builtin.lease(podID); ok {
		return m.builtin, nil
	}
	if _, ok := m.cni.lease(podID); ok {
		return m.cni, nil
	}
	use, err := m.cni.configured()
	if err != nil {
		return nil, err
	}
	if use {
		return m.cni, nil
	}
	return m.builtin, nil
}

// Teardown implements Network.
func (m *Manager) Teardown(ctx context.Context, p Pod) error {
	return errors.Join(m.builtin.Teardown(ctx, p), m.cni.Teardown(ctx, p))
}

// Ready implements Network.
func (m *Manager) Ready(ctx context.Context) error {
	list, err := m.cni.follow.Current(m.cni.at.Load().ConfDir)
	switch {
	case err != nil:
		return err
	case list != nil:
		return m.cni.Ready(ctx)
	}
	return m.builtin.Ready(ctx)
}

// BuiltIn says why the next pod is connected by the built-in network, "" if it is not.
func (m *Manager) BuiltIn() string {
	dir := m.cni.at.Load().ConfDir
	if list, err := m.cni.follow.Current(dir); list != nil || err != nil {
		return ""
	}
	return "no CNI configuration in " + dir
}

// Recover takes down what was set up for pods that are not claimed, and puts the host's side in
// order for those that are. A start waits for it: what a CNI plugin does not take down within some
// seconds stays in Leases, for Teardown to be called again.
func (m *Manager) Recover(ctx context.Context, claimed []string) error {
	keep := make(map[string]bool, len(claimed))
	for _, id := range claimed {
		keep[id] = true
	}
	return errors.Join(m.builtin.recover(ctx, keep), m.cni.recover(ctx, keep))
}

// Leases returns what pods have, sorted by pod.
func (m *Manager) Leases() []Lease {
	all := append(m.builtin.list(), m.cni.list()...)
	slices.SortFunc(all, func(a, b Lease) int { return cmp.Compare(a.PodID, b.PodID) })
	return all
}

// Bridged returns the pods that an earlier release has put on its bridge, by id, sorted. Only
// recreating a pod moves it.
func (m *Manager) Bridged() []string {
	ids := m.builtin.onBridge()
	slices.Sort(ids)
	return ids
}

// Flush waits until the links of all pods torn down so far are gone, except those that the kernel
// does not delete within seconds.
func (m *Manager) Flush(ctx context.Context) error {
	return m.builtin.reaper.idle(ctx)
}

// Purge removes the nftables table, and the addresses and routes for the ranges of pods. It fails
// if a pod is left. IP forwarding stays on: others may have come to count on it.
func (m *Manager) Purge(ctx context.Context) error { return m.builtin.purge(ctx) }

// LinkGroup is the group (ip-link(8)) of the links of the built-in network's pods.
func (m *Manager) LinkGroup() uint32 { return linkGroup(m.config.Name) }
