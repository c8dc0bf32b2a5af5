// Package sandbox makes, stops and removes pods: their namespaces, network, files and init.
package sandbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/join"
	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/exits"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/reserve"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/watch"
	"github.com/coracle-project/coracle/shim/client"
)

// Limits of operations that have no deadline of their own.
const (
	runLimit    = 2 * time.Minute
	initLimit   = 2 * time.Minute
	stopLimit   = 2 * time.Minute
	removeLimit = 2 * time.Minute
	updateLimit = 30 * time.Second
)

// Shim runs pods' inits, and forgets pods.
type Shim interface {
	Launch(ctx context.Context, r client.LaunchRequest) (client.Launched, error)
	Status(ctx context.Context, podID, id string) (client.Status, error)
	DeletePod(ctx context.Context, podID string) error
}

// Network connects pods.
type Network interface {
	Setup(ctx context.Context, p network.Pod) (network.Result, error)
	Teardown(ctx context.Context, p network.Pod) error
}

// Namespaces pins pods' namespaces.
type Namespaces interface {
	Create(ctx context.Context, dir string, s nspin.Spec) (nspin.Set, error)
	Remove(ctx context.Context, dir string) error
}

// Containers ends all containers of a pod, whether they have records or not.
type Containers interface {
	StopAll(ctx context.Context, podID string) error
	RemoveAll(ctx context.Context, podID string) error
}

// Readings are what was measured of pods.
type Readings interface {
	ForgetPod(podID string)
}

// Config is what Pods need. All fields must be set.
type Config struct {
	Pods         *state.PodTable
	Dirs         state.Layout
	Handlers     podconfig.Handlers
	CgroupDriver podconfig.CgroupDriver
	Cgroups      podconfig.Cgroups
	UnsetSeccomp podconfig.ProfileType
	ShimBinary   string

	Shim       Shim
	Network    Network
	Namespaces Namespaces
	Containers Containers
	Readings   Readings

	Exits    *exits.Tracker
	Notify   *plugins.Notifier
	SELinux  *mac.SELinux
	AppArmor *mac.AppArmor
	Reserve  *reserve.Reserve
	Created  *state.Stamps
	Events   *watch.Watchers
	Life     *life.Life
	Clean    *life.Cleaner
	Log      *slog.Logger
	FaultAt  func(ctx context.Context, point fault.Point) error
	// Starting is called when a pod starts to be made.
	Starting func()
	// AwaitRecovery delays the making of pods: recovery would take their parts for leftovers.
	AwaitRecovery func(ctx context.Context) error
}

// Pods leads pods through their lives.
type Pods struct {
	Config
	making join.Group[string] // Run, by identity
	ops    *life.Joined       // the others, by verb and id
}

// New makes Pods.
func New(c Config) *Pods { return &Pods{Config: c, ops: life.NewJoined(c.Life)} }
