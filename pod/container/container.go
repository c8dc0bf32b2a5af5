// Package container makes, starts, stops and removes containers.
package container

import (
	"context"
	"log/slog"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/join"
	"github.com/coracle-project/coracle/pod/checkpoint"
	"github.com/coracle-project/coracle/pod/exits"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/reserve"
	"github.com/coracle-project/coracle/pod/spec"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/watch"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

// Limits of operations that have no deadline of their own.
const (
	createLimit = 2 * time.Minute
	startLimit  = 2 * time.Minute
	stopLimit   = 2 * time.Minute // beyond the grace
	removeLimit = 2 * time.Minute
	updateLimit = 30 * time.Second
)

// Shim runs containers.
type Shim interface {
	Launch(ctx context.Context, r client.LaunchRequest) (client.Launched, error)
	Kill(ctx context.Context, r client.KillRequest) error
	Status(ctx context.Context, podID, id string) (client.Status, error)
	Update(ctx context.Context, podID, id string, r *specs.LinuxResources) error
}

// Images finds images that were pulled.
type Images interface {
	// Get finds an image by reference, digest or id. image.ErrNotFound if there is none.
	Get(ref string) (image.Image, error)
}

// Snapshots makes root file systems and image volumes.
type Snapshots interface {
	Prepare(ctx context.Context, id string, o snapshot.PrepareOptions) (snapshot.Snapshot, error)
	Remove(ctx context.Context, id string) error
}

// Namespaces names pinned UTS namespaces.
type Namespaces interface {
	// SetHostname names a pinned UTS namespace again.
	SetHostname(pin, name string) error
}

// Readings are what was measured of containers.
type Readings interface {
	ForgetContainer(id string)
}

// Config is what Containers need. All fields must be set.
type Config struct {
	Pods       *state.PodTable
	Containers *state.ContainerTable
	Dirs       state.Layout
	Handlers   podconfig.Handlers

	Shim       Shim
	Images     Images
	Snapshots  Snapshots
	Namespaces Namespaces
	Readings   Readings

	Specs       *spec.Builder
	Checkpoints *checkpoint.Store
	Exits       *exits.Tracker
	Notify      *plugins.Notifier
	SELinux     *mac.SELinux
	Reserve     *reserve.Reserve
	Created     *state.Stamps
	Events      *watch.Watchers
	Life        *life.Life
	Clean       *life.Cleaner
	Log         *slog.Logger
	FaultAt     func(ctx context.Context, point fault.Point) error
	// Starting is called when a container starts to be made.
	Starting func()
	// AwaitRecovery delays the making of containers: recovery would take their parts for leftovers.
	AwaitRecovery func(ctx context.Context) error
}

// Containers leads containers through their lives.
type Containers struct {
	Config
	making join.Group[string] // Create, by identity
	ops    *life.Joined       // the others, by verb and id
	stops  *stops
}

// New makes Containers.
func New(c Config) *Containers {
	return &Containers{Config: c, ops: life.NewJoined(c.Life), stops: newStops()}
}
