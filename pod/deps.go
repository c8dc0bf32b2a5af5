package pod

import (
	"context"
	"log/slog"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

// Shim is what pod needs of shim/client.Client, which documents it. A test double
// that injects faults is the other implementation.
type Shim interface {
	Events() <-chan client.Event
	Create(ctx context.Context, r client.CreateRequest) (pid int, err error)
	StartContainer(ctx context.Context, podID, id string) error
	Exec(ctx context.Context, r client.ExecRequest) (exitCode int32, err error)
	Attach(ctx context.Context, podID, id string, s client.Streams) error
	Kill(ctx context.Context, r client.KillRequest) error
	Delete(ctx context.Context, podID, id string) error
	DeletePod(ctx context.Context, podID string) error
	Status(ctx context.Context, podID, id string) (client.Status, error)
	List(ctx context.Context) (map[string][]string, error)
	Stats(ctx context.Context, podID, id string) (runtime.Stats, error)
	Update(ctx context.Context, podID, id string, r *specs.LinuxResources) error
	ReopenLog(ctx context.Context, podID, id string) error
}

// Images finds images that were pulled; image.Store implements it.
type Images interface {
	// Get finds an image by reference, digest or id. image.ErrNotFound if there is none.
	Get(ref string) (image.Image, error)
}

// Snapshots makes root file systems; snapshot.Store implements it.
type Snapshots interface {
	Prepare(ctx context.Context, id string, o snapshot.PrepareOptions) (snapshot.Snapshot, error)
	Remove(ctx context.Context, id string) error
	Usage(ctx context.Context, id string) (snapshot.Usage, error)
	// Recover removes every snapshot whose id is not claimed.
	Recover(ctx context.Context, claimed []string) error
}

// Network connects pods; network.Manager implements it.
type Network interface {
	network.Network
	// Recover tears down what was set up for pods that are not claimed.
	Recover(ctx context.Context, claimed []string) error
}

// NamespacePins pins namespaces, as internal/nspin does.
type NamespacePins interface {
	// Root prepares the directory that the directories of all pods are in.
	Root(dir string) error
	Create(ctx context.Context, dir string, s nspin.Spec) (nspin.Set, error)
	Remove(ctx context.Context, dir string) error
}

// pins is NamespacePins done by internal/nspin.
type pins struct{}

func (pins) Root(dir string) error { return nspin.Root(dir) }

func (pins) Create(ctx context.Context, dir string, s nspin.Spec) (nspin.Set, error) {
	return nspin.Create(ctx, dir, s)
}

func (pins) Remove(_ context.Context, dir string) error { return nspin.Remove(dir) }

// Deps are the parts that a Manager drives.
type Deps struct {
	Shim       Shim
	Images     Images
	Snapshots  Snapshots
	Network    Network
	Namespaces NamespacePins // internal/nspin if nil
	// Starting, if not nil, is called when a pod or container begins to be made: a
	// process will start soon. It must return at once.
	Starting func()
	Log      *slog.Logger
}

// CgroupDriver says who makes cgroups.
type CgroupDriver string

// The drivers.
const (
	Cgroupfs CgroupDriver = "cgroupfs"
	Systemd  CgroupDriver = "systemd"
)

// Options are a Manager's settings. Paths are absolute.
type Options struct {
	// StateDir is the daemon's state directory (tmpfs); pods/ and containers/
	// are made in it.
	StateDir string
	// ShimBinary is bind-mounted into pods with a shared PID namespace as their init.
	ShimBinary string
	// CgroupDriver is Cgroupfs if empty.
	CgroupDriver CgroupDriver
	// CgroupRoot is where the cgroups of pods without a parent are made under
	// Cgroupfs; "/coracle" if empty. Under Systemd it is a slice, "system.slice" if empty.
	CgroupRoot string
	// RuntimeHandlers are accepted besides ""; "coracle" if nil.
	RuntimeHandlers []string
	// UnsetSeccomp is the profile of containers that do not say; "" is unconfined.
	UnsetSeccomp ProfileType
	// DiskUsageAge is how old a reading of a writable layer's usage may be in
	// ListStats; 10 s if 0.
	DiskUsageAge time.Duration
}

// withDefaults fills in what was left empty.
func (o Options) withDefaults() Options {
	if o.CgroupDriver == "" {
		o.CgroupDriver = Cgroupfs
	}
	if o.CgroupRoot == "" {
		o.CgroupRoot = "/coracle"
		if o.CgroupDriver == Systemd {
			o.CgroupRoot = "system.slice"
		}
	}
	if o.RuntimeHandlers == nil {
		o.RuntimeHandlers = []string{"coracle"}
	}
	if o.DiskUsageAge == 0 {
		o.DiskUsageAge = 10 * time.Second
	}
	return o
}
