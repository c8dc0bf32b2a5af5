// Package runtime makes containers from OCI bundles and drives them: create,
// start, exec, signal, pause, update, stats, delete. It knows nothing of images,
// pods or CRI, and links no gRPC, net/http or k8s.io code, because it lives in
// the small, long-lived shim.
//
// # Life of a container
//
//	Create ──► created ──Start──► running ──(init exits)──► stopped ──Delete──► gone
//	                                │  ▲
//	                              Pause Resume
//
// Create makes the namespaces and the cgroup, sets up the root file system and
// leaves the init process blocked just before it executes the user's program.
// Start lets it go on. The process that called Create is the parent of init (and of
// each process that Exec starts) and must reap it: the engine never waits for it.
//
// An Engine keeps what it needs to find a container again in its state
// directory, so another process (a restarted shim, the next coracle-oci
// invocation) can Load it.
//
// # Errors
//
// Every error names the operation, the container and the cause. These kinds can
// be tested with errors.Is: ErrExists, ErrNotFound, ErrNotRunning, ErrRunning,
// ErrInvalidSpec, ErrInvalidID, ErrUnsupported.
package runtime

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Kinds of error, for errors.Is.
var (
	ErrExists      = errors.New("container already exists")
	ErrNotFound    = errors.New("container not found")
	ErrNotRunning  = errors.New("container is not running")
	ErrRunning     = errors.New("container is running")
	ErrInvalidSpec = errors.New("invalid OCI spec")
	ErrInvalidID   = errors.New("invalid container id")
	ErrUnsupported = errors.New("not supported")
)

// Engine creates containers and finds those that it created before. All methods
// may be called concurrently, for different containers and for the same one.
type Engine interface {
	// Create sets up container id from spec and leaves init blocked before
	// its exec. On error nothing of the container is left behind.
	Create(ctx context.Context, id string, spec *specs.Spec, opts CreateOptions) (Container, error)
	// Load finds a container made by an earlier Create, by this or another
	// process. ErrNotFound if there is none.
	Load(ctx context.Context, id string) (Container, error)
	// List returns the ids of all containers in the state directory, sorted. An
	// engine's first one removes what killed processes left half made or removed.
	List(ctx context.Context) ([]string, error)
}

// CreateOptions is what Create needs beyond the spec.
type CreateOptions struct {
	// Handler is who makes the container: an OCIHandler with the absolute path of an OCI
	// runtime's command, a ShimHandler with the name of a containerd shim, or, empty, the
	// engine itself. See package handler; engines that know only themselves ignore it.
	Handler string
	// Bundle is the absolute path of the bundle directory; a relative
	// spec.Root.Path is taken from it, hooks get it in their state.
	Bundle string
	// Stdio is what init gets as descriptors 0, 1 and 2.
	Stdio Stdio
	// SystemdCgroup makes the cgroup a systemd scope; spec.Linux.CgroupsPath
	// is then "slice:prefix:name".
	SystemdCgroup bool
	// NoPivot, NoNewKeyring: as runc's flags of these names.
	NoPivot, NoNewKeyring bool
	// RootlessCgroups says whether to go on where cgroups cannot be written. nil finds
	// out by who the caller is.
	RootlessCgroups *bool
	// Made, if not nil, is told the steps of this process once the container has been made, if the
	// engine measures them: a reading of the clock each.
	Made func([]Step)
}

// Step is a part of making a container, or a pod.
type Step struct {
	What  string        `json:"what"`
	Began time.Time     `json:"began,omitzero"` // zero if it is not known
	Took  time.Duration `json:"took"`           // ns
}

// What CreateOptions.Handler starts with.
const (
	OCIHandler  = "oci:"
	ShimHandler = "shim:"
)

// Stdio is the standard streams of a process. With Process.Terminal set in the
// spec only Console is used; otherwise the three files. A nil file is /dev/null.
// The engine dups what it needs: the caller closes its own when Create or Exec
// has returned.
type Stdio struct {
	Stdin, Stdout, Stderr *os.File
	// Console is a unix socket over which the engine sends the master side of
	// the new terminal with SCM_RIGHTS, as runc's --console-socket does.
	Console *os.File
	// Files become descriptors 3 and on.
	Files []*os.File
}

// Container is one container. Its methods may be called concurrently. Functions that need a part of
// it only take that part.
type Container interface {
	Observable
	Runnable
	Adjustable
	// Delete frees everything the container holds (cgroup, state directory,
	// leftover processes if force). ErrRunning if it runs and force is false.
	// Deleting what is already gone succeeds.
	Delete(ctx context.Context, opts DeleteOptions) error
}

// Observable is what can be read of a container.
type Observable interface {
	ID() string
	// Pid is init's pid in the caller's pid namespace, 0 once it is known to be gone.
	Pid() int
	// State is the OCI state (creating, created, running, stopped, or paused).
	State(ctx context.Context) (State, error)
	Stats(ctx context.Context) (Stats, error)
	// Pids lists all processes in the container's cgroup, in the caller's pid namespace.
	Pids(ctx context.Context) ([]int, error)
}

// Runnable starts processes of a container and sends them signals.
type Runnable interface {
	// Start lets init execute the user's program. ErrNotRunning if init died
	// before, ErrRunning if it has been started already.
	Start(ctx context.Context) error
	// Exec starts another process in the running container and returns its
	// pid. The caller reaps it. ErrNotRunning if the container is not running.
	Exec(ctx context.Context, p *specs.Process, opts ExecOptions) (pid int, err error)
	// Signal sends sig to init. ErrNotRunning if it is gone.
	Signal(ctx context.Context, sig syscall.Signal) error
	// SignalAll sends sig to every process in the container's cgroup.
	SignalAll(ctx context.Context, sig syscall.Signal) error
}

// Adjustable changes what a running container may use.
type Adjustable interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Update changes the resource limits; nil fields stay as they are, device
	// rules always.
	Update(ctx context.Context, r *specs.LinuxResources) error
}

// ExecOptions is what Exec needs beyond the process.
type ExecOptions struct {
	Stdio Stdio
	// Cgroups are existing cgroups below the container's for the process, by controller;
	// "" means the unified hierarchy or, if it is the only key, all.
	Cgroups map[string]string
	// InCreated does not refuse a container that is created and not yet started.
	InCreated bool
	// IgnorePaused does not refuse a paused container; Exec may then last until that is
	// resumed.
	IgnorePaused bool
}

// DeleteOptions says how hard Delete tries.
type DeleteOptions struct {
	// Force kills what still runs instead of failing with ErrRunning.
	Force bool
}

// StatusPaused is runc's addition to the statuses of the runtime spec.
const StatusPaused specs.ContainerState = "paused"

// State is a container's state as the OCI runtime spec defines it
// (runtime.md#state), with the status "paused" added as runc does.
type State struct {
	specs.State
	Created time.Time
}

// Stats is one reading of a container's cgroup. Zero where a controller is absent.
type Stats struct {
	Time time.Time
	// CPU time used since creation, nanoseconds.
	CPUUsage, CPUUser, CPUSystem uint64
	// Throttling: periods, throttled periods, time throttled in nanoseconds.
	CPUPeriods, CPUThrottledPeriods, CPUThrottledTime uint64
	// Memory in bytes. MemoryWorkingSet is usage less inactive file pages.
	MemoryUsage, MemoryLimit, MemoryWorkingSet, MemoryRSS, MemorySwap uint64
	MemoryPageFaults, MemoryMajorPageFaults                           uint64
	Pids, PidsLimit                                                   uint64
	// OOMKills is how many processes the kernel killed for memory in this cgroup.
	OOMKills uint64
}
