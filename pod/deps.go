package pod

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/checkpoint"
	"github.com/coracle-project/coracle/pod/container"
	"github.com/coracle-project/coracle/pod/exits"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/recovery"
	"github.com/coracle-project/coracle/pod/sandbox"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/stats"
	"github.com/coracle-project/coracle/pod/streams"
)

// Shim is what the parts need of shim/client.Client, which documents it. A test double that injects
// faults is the other implementation.
type Shim interface {
	checkpoint.Shim
	container.Shim
	exits.Shim
	recovery.Shim
	sandbox.Shim
	streams.Shim
}

// Images finds images that were pulled; image.Store implements it.
type Images interface {
	checkpoint.Images
	container.Images
}

// Snapshots makes root file systems; snapshot.Store implements it.
type Snapshots interface {
	checkpoint.Snapshots
	container.Snapshots
	recovery.Snapshots
	stats.DiskMeter
}

// Network connects pods; network.Manager implements it.
type Network interface {
	network.Network
	recovery.Network
	SetPodCIDR(ctx context.Context, ranges []netip.Prefix) error
}

// NamespacePins pins namespaces, as internal/nspin does.
type NamespacePins interface {
	container.Namespaces
	recovery.Namespaces
	sandbox.Namespaces
}

// pins is NamespacePins done by internal/nspin.
type pins struct{ maker nspin.Maker }

func (*pins) Root(dir string) error { return nspin.Root(dir) }

func (p *pins) Create(ctx context.Context, dir string, s nspin.Spec) (nspin.Set, error) {
	return p.maker.Create(ctx, dir, s)
}

func (*pins) Remove(ctx context.Context, dir string) error { return nspin.Remove(ctx, dir) }

func (*pins) SetHostname(pin, name string) error { return nspin.SetHostname(pin, name) }

// Deps are the parts that a Manager drives.
type Deps struct {
	Shim       Shim
	Images     Images
	Snapshots  Snapshots
	Network    Network
	Namespaces NamespacePins // internal/nspin if nil
	Plugins    plugins.Set   // none if nil
	Meter      stats.Meter   // this host if nil
	Labels     mac.Labeler   // this host's SELinux if nil
	// Starting, if not nil, is called when a pod or container starts to be made: a
	// process will start soon. It must return at once.
	Starting func()
	Log      *slog.Logger
}

// Options are a Manager's settings. Paths are absolute.
type Options struct {
	// StateDir is the daemon's state directory (tmpfs); pods/ and containers/
	// are made in it.
	StateDir string
	// Records is the result of ReadRecords for StateDir; nil: Start reads them.
	Records *state.Records
	// ShimBinary is bind-mounted into pods with a shared PID namespace as their init.
	ShimBinary string
	// CgroupDriver is Cgroupfs if empty.
	CgroupDriver podconfig.CgroupDriver
	// CgroupRoot is where the cgroups of pods without a parent are made under
	// Cgroupfs; "/coracle" if empty. Under Systemd it is a slice, "system.slice" if empty.
	CgroupRoot string
	// Handlers returns the runtime handlers that a pod may name; "coracle", our own, if nil. The
	// unnamed one is our own, too, unless it is among them.
	Handlers podconfig.Handlers
	// Restore lets containers go on from checkpoints: see pod/checkpoint.
	Restore bool
	// RestoreBases are the images that a checkpoint image may name as the one that the saved
	// container was made from: full names, or a prefix followed by *.
	RestoreBases []string
	// Rlimits are the limits (setrlimit(2)) that containers start with; of others they have the
	// shim's.
	Rlimits []specs.POSIXRlimit
	// CDISpecDirs are where CDI specs are, later ones before earlier; /etc/cdi and
	// /var/run/cdi if nil.
	CDISpecDirs []string
	// UnsetSeccomp is the profile of containers that do not say; "" is unconfined.
	UnsetSeccomp podconfig.ProfileType
	// UsageAge is how old a reading of a cgroup or of interfaces may be; 1 s if 0.
	UsageAge time.Duration
	// DiskUsageAge is how old a reading of a writable layer's usage may be in
	// ListStats; 10 s if 0.
	DiskUsageAge time.Duration
}

// withDefaults fills in what was left empty.
func (o Options) withDefaults() Options {
	if o.CgroupDriver == "" {
		o.CgroupDriver = podconfig.Cgroupfs
	}
	if o.CgroupRoot == "" {
		o.CgroupRoot = "/coracle"
		if o.CgroupDriver == podconfig.Systemd {
			o.CgroupRoot = "system.slice"
		}
	}
	if o.Handlers == nil {
		own := map[string]podconfig.Handler{"coracle": {}}
		o.Handlers = func() map[string]podconfig.Handler { return own }
	}
	if o.CDISpecDirs == nil {
		o.CDISpecDirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
	if o.UsageAge == 0 {
		o.UsageAge = time.Second
	}
	if o.DiskUsageAge == 0 {
		o.DiskUsageAge = 10 * time.Second
	}
	return o
}

func (o *Options) cgroups() podconfig.Cgroups {
	return podconfig.Cgroups{Driver: o.CgroupDriver, Root: o.CgroupRoot}
}
