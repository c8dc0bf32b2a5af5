// Package pod holds the lives of pods and containers on this node: their records,
// state machines, intents, recovery, stats. It knows no protobuf and no gRPC: cri/
// translates.
//
// # State machines
//
//	pod        (intent) ─Run─► ready ─Stop, or its init dies─► notready ─Remove─► gone
//	container  (intent) ─Create─► created ─Start─► running ─exit, Stop─► exited ─Remove─► gone
//
// Every operation writes its intent into the record, acts, and writes the result;
// Start (of the Manager) is recovery: it reads all records, asks shims and kernel what
// is really there, and rolls each operation forward or back.
//
// # Concurrency
//
// Operations on one pod or container run one at a time; a second call of the same
// operation for the same object joins the one under way and returns its result.
// An operation goes on when its caller goes away. Status and List read an immutable
// value from memory and never wait.
package pod

import (
	"errors"
	"io"
	"time"

	"github.com/coracle-project/coracle/shim/client"
)

// Kinds of error, for errors.Is; cri/ maps each to one gRPC code.
var (
	ErrNotFound     = errors.New("not found")           // NotFound
	ErrInvalid      = errors.New("invalid argument")    // InvalidArgument
	ErrExists       = errors.New("already exists")      // AlreadyExists
	ErrPrecondition = errors.New("failed precondition") // FailedPrecondition
	ErrUnsupported  = errors.New("not supported")       // Unimplemented
	ErrExhausted    = errors.New("resource exhausted")  // ResourceExhausted
	ErrUnavailable  = errors.New("unavailable")         // Unavailable
)

// Streams are the caller's ends of an exec, attach or port forward.
type Streams = client.Streams

// Size is a terminal's size.
type Size = client.Size

// ExecRequest is a command in a running container.
type ExecRequest struct {
	Container string // id or unique prefix
	Command   []string
	TTY       bool
	Streams   Streams
}

// ExecSyncResult is what a command printed and how it ended.
type ExecSyncResult struct {
	Stdout, Stderr []byte // each cut at MaxExecSyncOutput bytes
	ExitCode       int32
}

// MaxExecSyncOutput bounds each stream of ExecSync (16 MiB, as peers do).
const MaxExecSyncOutput = 16 << 20

// contract lists the methods of Manager that cri/ builds on.
//
//	New(Config, Deps) *Manager                       no I/O
//	Start(ctx) error                                 recovery
//	Close() error                                    containers stay
//
//	Run(ctx, Config) (podID string, err error)
//	Stop(ctx, podID) error                           idempotent; unknown id: nil
//	Remove(ctx, podID) error                         idempotent; unknown id: nil
//	Pod(podID) (Pod, error)
//	Pods(PodFilter) []Pod                            newest first
//
//	Create(ctx, podID, ContainerConfig) (id string, err error)
//	StartContainer(ctx, id) error
//	StopContainer(ctx, id, grace time.Duration) error  idempotent; unknown id: nil
//	RemoveContainer(ctx, id) error                     idempotent; unknown id: nil
//	Container(id) (Container, error)
//	Containers(ContainerFilter) []Container
//
//	ExecSync(ctx, ExecRequest, timeout) (ExecSyncResult, error)   timeout 0: none; DeadlineExceeded on timeout
//	Exec(ctx, ExecRequest) (exitCode int32, err error)
//	Attach(ctx, id, tty bool, Streams) error
//	PortForward(ctx, podID, port int32, io.ReadWriteCloser) error   dials 127.0.0.1, then ::1, in the pod's netns
//	CheckExec(id) error / CheckAttach(id) / CheckPod(id)            what Exec's URL request validates first
//
//	Stats(ctx, id) (ContainerStats, error)
//	ListStats(ctx, ContainerFilter) []ContainerStats   a container whose shim does not answer in 1 s is left out
//	ReopenLog(ctx, id) error
//	UpdateResources(ctx, id, Resources, annotations) error
//	NetworkReady(ctx) error
var (
	_ io.ReadWriteCloser
	_ time.Duration
)
