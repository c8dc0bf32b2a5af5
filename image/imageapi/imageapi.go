// Package imageapi serves coracled's own image service (image/api/v1), which is next to
// CRI on the daemon's socket: what `coracle image` does and CRI has no calls for.
//
// It is a thin edge, as cri/ is: a method turns a request into calls of image/ and
// snapshot/ and the answer back. Only what takes more than one of the two is decided
// here: whose bytes are on disk, which images are in use, how a container becomes an
// image. The server's interceptors (cri/) log calls and turn errors into statuses.
//
//	list.go      List, Inspect
//	names.go     Tag, Remove, Prune
//	usage.go     Usage
//	transfer.go  Pull, Push and their progress
//	archive.go   Save, Load, Import; stream.go: bytes in messages
//	mount.go     Mount, Unmount, Export
//	commit.go    Commit
//	verify.go    Verify
package imageapi

import (
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/snapshot"
)

// Containers is what the service asks about containers; pod.Manager implements it.
type Containers interface {
	Containers(f pod.ContainerFilter) iter.Seq[pod.Container]
}

// Deps are the parts behind the edge.
type Deps struct {
	Images     *image.Store
	Snapshots  *snapshot.Store
	Containers Containers
	// Root is the daemon's root directory, which Usage accounts for; State that
	// of what a reboot may lose.
	Root, State string
}

// Register adds the service to a server.
func Register(r grpc.ServiceRegistrar, d Deps) {
	imagesv1.RegisterImagesServer(r, &service{deps: d})
}

// service implements the calls. What it does not define answers Unimplemented.
type service struct {
	imagesv1.UnimplementedImagesServer
	deps Deps
}

// required rejects a field that may not be empty.
func required(field, value string) error {
	if value == "" {
		return status.Errorf(codes.InvalidArgument, "%s: is required", field)
	}
	return nil
}
