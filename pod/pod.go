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
