// Package client is the daemon's side of the shim: it starts shims, keeps them
// running, and gives pod/ plain Go calls over the containerd Runtime v2 Task API
// (ttrpc) and Coracle's own shim service.
//
// One Client serves all pods, whatever shim.scope says: with scope "node" there is
// one shim process, with scope "pod" one per pod; callers do not see the
// difference except that every container names its pod.
//
// # Life
//
//	c, _ := client.New(client.Config{…})
//	_ = c.Start(ctx)   // finds or starts the keeper and the shims; adopts what runs
//	_, _ = c.Launch(ctx, client.LaunchRequest{…})
//	for ev := range c.Events() { … }   // exits of containers, once each
//	_ = c.Delete(ctx, id)
//	_ = c.Close()      // containers, shims and keeper stay
//
// A shim that dies is replaced at once; calls under way fail with ErrUnavailable
// and calls that come meanwhile wait for the new one, up to their context's end.
package client

import (
	"errors"
	"io"
	"log/slog"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// Kinds of error, for errors.Is.
var (
	ErrNotFound    = errors.New("container not found in the shim")
	ErrExists      = errors.New("container already exists in the shim")
	ErrNotRunning  = errors.New("container is not running")
	ErrRunning     = errors.New("container is running")
	ErrDamaged     = errors.New("the shim cannot read the container's record")
	ErrUnavailable = errors.New("shim unavailable")
	ErrInvalid     = errors.New("invalid container")
	ErrExhausted   = errors.New("too many processes")
)

// Scope says how many shims there are.
type Scope string

// The scopes.
const (
	ScopeNode Scope = "node" // one shim for all pods
	ScopePod  Scope = "pod"  // one shim per pod
)

// Config is what a Client needs. All paths are absolute.
type Config struct {
	// Binary is the shim's executable (containerd-shim-coracle-v1).
	Binary string
	// StateDir (under the daemon's state directory) holds sockets, the shim's
	// records and FIFOs.
	StateDir string
	Scope    Scope
	// Engine is which one makes the containers: coracle or libcontainer. Empty: the shim's
	// default.
	Engine string
	// SystemdCgroup makes container cgroups systemd scopes.
	SystemdCgroup bool
	// Daemon, if not nil, is how the keeper starts the daemon again when it
	// died without Close (kill -9, panic). Nil when something else (systemd)
	// does that.
	Daemon *Respawn
	Log    *slog.Logger

	limits limits // defaultLimits, except in tests
}

// Respawn is a command to start again.
type Respawn struct {
	Path string
	Args []string // with argv[0]
	Env  []string // a closed list
}

// LaunchRequest describes a container's init process. The bundle's config.json
// has been written; its root file system is mounted.
type LaunchRequest struct {
	PodID, ID string
	Bundle    string // absolute path of the directory with config.json
	// Handler is who makes the container, see runtime.CreateOptions; empty: the shim's engine.
	Handler  string
	Terminal bool
	// Checkpoint is a directory that Client.Checkpoint wrote: the container goes on from
	// there, at once. The bundle has to be like that of the container which was saved.
	Checkpoint string
	// Stdin keeps stdin open for Attach; StdinOnce closes it when the first
	// attached client goes. Without Stdin, stdin is /dev/null.
	Stdin, StdinOnce bool
	// LogPath is the CRI log file; its directory must exist. Empty: output is discarded (but can be
	// attached to). No link leads it out of LogDirectory; if that is empty, only the last component
	// of LogPath is not followed.
	LogPath, LogDirectory string
	LogLimit              LogLimit
}

// Launched is a container that has been started.
type Launched struct {
	Pid     int       // of init
	Created time.Time // when init was ready to execute the program
	// EngineSteps are those of making it, in the shim; none if its engine does not take the time.
	EngineSteps []runtime.Step
}

// LogLimit has the shim rotate a log itself. The zero value is no limit.
type LogLimit struct {
	FileBytes int64 // of one file; at least api.MinLogBytes
	Files     int   // with the one that is written; at least 2
}

// Event is the exit of a container's init, an out-of-memory kill, or a new shim.
type Event struct {
	PodID, ID string
	Kind      EventKind
	Pid       int
	ExitCode  int32     // 128+signal if killed; 255 if it cannot be known
	ExitedAt  time.Time // zero if it cannot be known how it ended
	OOMKilled bool
}

// EventKind is the kind of an Event.
type EventKind int

// The kinds.
const (
	EventExit EventKind = iota + 1
	EventOOM
	// EventReconnected reports that a new shim has replaced another. The events of all exits that
	// it knows have been delivered before. ID is empty. PodID is set if the shim belongs to one
	// pod.
	EventReconnected
)

// Status is what the shim knows of a container now.
type Status struct {
	Pid       int
	State     State
	ExitCode  int32
	ExitedAt  time.Time // as Event's
	OOMKilled bool
}

// State is the state of a container's init.
type State string

// The states.
const (
	StateCreated State = "created"
	StateRunning State = "running"
	StatePaused  State = "paused"
	StateStopped State = "stopped"
)

// Size is a terminal's size in characters.
type Size struct{ Width, Height uint16 }

// Streams are the ends that Exec and Attach copy to and from. Nil: not wanted.
// Exec and Attach do not close them. With a terminal there is no Stderr.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize, if not nil, is read until it is closed or the process has ended.
	Resize <-chan Size
}

// ExecRequest is one more process in a running container. Process is complete
// (args, env, cwd, user, capabilities, terminal, …).
type ExecRequest struct {
	PodID, ID string
	Process   *specs.Process
	Streams   Streams
}

// KillRequest is a signal to a container's init (or to all its processes).
type KillRequest struct {
	PodID, ID string
	Signal    syscall.Signal
	All       bool
}
