package pod

import (
	"github.com/coracle-project/coracle/pod/recovery"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/stats"
	"github.com/coracle-project/coracle/pod/streams"
	"github.com/coracle-project/coracle/pod/watch"
)

// What callers see of pods and containers, and how they choose some.
type (
	Pod             = state.Pod
	Container       = state.Container
	State           = state.State
	ContainerState  = state.ContainerState
	PodFilter       = state.PodFilter
	ContainerFilter = state.ContainerFilter
	Step            = state.Step

	ContainerStats = stats.Container
	PodStats       = stats.Pod
	PodStatsFilter = stats.PodFilter
	InterfaceUsage = stats.InterfaceUsage
)

// The states of pods and containers.
const (
	Ready    = state.Ready
	NotReady = state.NotReady
	Created  = state.Created
	Running  = state.Running
	Exited   = state.Exited
	Unknown  = state.Unknown
)

// Event is one change in the life of a pod or container.
type (
	Event     = watch.Event
	EventKind = watch.EventKind
)

// The kinds of Event.
const (
	EventCreated = watch.EventCreated
	EventStarted = watch.EventStarted
	EventStopped = watch.EventStopped
	EventDeleted = watch.EventDeleted
)

// ExecRequest and ExecSyncResult are what Exec and ExecSync take and return.
type (
	ExecRequest    = streams.ExecRequest
	ExecSyncResult = streams.ExecSyncResult
)

// MaxExecSyncOutput bounds each stream of ExecSync.
const MaxExecSyncOutput = streams.MaxExecSyncOutput

// Unmanaged is a pod or container that has no usable record: see package recovery.
type (
	Unmanaged     = recovery.Unmanaged
	UnmanagedKind = recovery.UnmanagedKind
)

// The kinds of Unmanaged.
const (
	UnmanagedPod       = recovery.UnmanagedPod
	UnmanagedContainer = recovery.UnmanagedContainer
)
