package runtime

import (
	"context"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// What follows not every engine can do. Callers ask for it with a type assertion, and say
// ErrUnsupported where it fails:
//
//	cp, ok := c.(runtime.Checkpointer)

// Checkpointer is a Container that can be written to files and stopped.
type Checkpointer interface {
	// Checkpoint saves the container's processes. They are gone afterwards, and the
	// caller deletes the container, unless LeaveRunning or PreDump is set.
	// ErrNotRunning if the container neither runs nor is paused.
	Checkpoint(ctx context.Context, opts CheckpointOptions) error
}

// Restorer is an Engine that can make a container from what Checkpoint wrote.
type Restorer interface {
	// Restore is Create and Start in one: the restored processes go on at once. The
	// spec has to be that of the container which was saved.
	Restore(ctx context.Context, id string, spec *specs.Spec, create CreateOptions, opts RestoreOptions) (Container, error)
}

// OOMCounter is a Container that counts out-of-memory kills without the rest of Stats.
type OOMCounter interface {
	// OOMKills is how many processes the kernel killed for memory in the container's cgroup.
	OOMKills(ctx context.Context) (uint64, error)
}

// CgroupHolder is a Container that tells where its cgroups are, for what Stats leaves out.
type CgroupHolder interface {
	// CgroupPaths are the directories by controller on cgroup v1; the one of the
	// unified hierarchy, if there is one, is under "".
	CgroupPaths() map[string]string
}

// Known is what the caller of an engine knows about a container.
type Known struct {
	// Pid and StartTime (clock ticks since boot) identify init; 0 if unknown.
	Pid       int
	StartTime uint64
	Bundle    string
	// CgroupPaths are the paths that CgroupHolder returned.
	CgroupPaths map[string]string
}

// Rebuilder is an Engine that can continue with a container whose record it cannot read.
type Rebuilder interface {
	// Rebuild rebuilds the record from what was recorded before the container was created and from
	// what the caller knows. It keeps the damaged record next to the new one. It returns
	// ErrNotFound if neither source knows anything.
	Rebuild(ctx context.Context, id string, known Known) (Container, error)
}

// RecordChecker is an Engine that can check whether it understands its own records.
type RecordChecker interface {
	// CheckRecords fails with a *recordfile.NewerError if a newer program wrote one of the records.
	// It changes nothing.
	CheckRecords(ctx context.Context) error
}

// Recorded is a Container that returns its init from its record, even after init has ended.
type Recorded interface {
	// Init returns 0, 0 if none was recorded: the creation did not finish.
	Init() (pid int, startTime uint64)
}

// RdtUpdater is a Container whose share of caches and memory bandwidth can be changed
// (Intel RDT, linux.intelRdt in the runtime spec).
type RdtUpdater interface {
	// UpdateRdt sets the schemas that are not empty.
	UpdateRdt(ctx context.Context, l3Cache, memoryBandwidth string) error
}

// ImageOptions is what saving and restoring have in common. Paths are absolute.
type ImageOptions struct {
	// ImageDir holds the files, WorkDir logs and what else is for the moment only; an
	// empty one is ImageDir.
	ImageDir, WorkDir string
	// TCPEstablished, ExternalUnixSockets, FileLocks and ShellJob allow what cannot be
	// saved alone: open connections, sockets with an end outside, locks on files, a
	// session whose leader is outside.
	TCPEstablished, ExternalUnixSockets, FileLocks, ShellJob bool
	// CgroupMode is soft, full, strict, ignore, or empty for soft.
	CgroupMode string
	// AutoDedup drops pages from older images as newer ones replace them.
	AutoDedup bool
	// LazyPages leaves memory behind, to be fetched when it is touched.
	LazyPages bool
}

// CheckpointOptions is how a container is saved.
type CheckpointOptions struct {
	ImageOptions
	// ParentDir is the directory of an earlier PreDump, relative to ImageDir.
	ParentDir string
	// LeaveRunning lets the container go on.
	LeaveRunning bool
	// PreDump saves memory only and lets the container go on: what has not changed
	// since is left out of the image that names this one as its parent.
	PreDump bool
	// TCPSkipInFlight leaves out connections that are not yet accepted.
	TCPSkipInFlight bool
	// LinkRemap links deleted files that are still open, so that they can be restored.
	LinkRemap bool
	// PageServer receives memory pages, as ADDRESS:PORT; empty for none.
	PageServer string
	// StatusFD gets a zero byte once lazy pages can be fetched; below zero for none.
	StatusFD int
}

// RestoreOptions is how a container is restored.
type RestoreOptions struct {
	ImageOptions
	// LSMProfile is TYPE:NAME of another profile of the security module;
	// LSMMountContext is another SELinux context of mounts. Empty: those saved.
	LSMProfile, LSMMountContext string
}

// Remote is a Container whose processes are another program's children: how they end, and
// what is done to them, goes through that. Its terminals are that program's, too: Stdio has
// FIFOs also where Process.Terminal is set.
type Remote interface {
	// Wait returns when init or a process that Exec has started has ended, and its output has
	// been written. ErrNotFound if it cannot be known how it ended.
	Wait(ctx context.Context, pid int) (Exit, error)
	// SignalProcess sends sig to one of these. ErrNotRunning if it is gone.
	SignalProcess(ctx context.Context, pid int, sig syscall.Signal) error
	// Resize sets the size of its terminal, in characters.
	Resize(ctx context.Context, pid int, width, height uint16) error
	// CloseStdin ends its input, which that program keeps open besides its caller.
	CloseStdin(ctx context.Context, pid int) error
}

// Exit is the end of a process.
type Exit struct {
	Status int // 128+signal if one has killed it
	At     time.Time
}
