// Package nodeapi serves coracled's node service (shim/nodeapi/v1). It is a thin layer over
// shim/client.
package nodeapi

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/shim/client"
	nodev1 "github.com/coracle-project/coracle/shim/nodeapi/v1"
)

// Shims are the shims of the node; *client.Client.
type Shims interface {
	// Shims describes the shims without asking them.
	Shims() []client.Shim
	// ShimVersion asks a shim for its version.
	ShimVersion(ctx context.Context, name string) (string, error)
	// RestartShim ends a shim and waits for the next one. It returns client.ErrNotFound if there is
	// no such shim.
	RestartShim(ctx context.Context, name string) error
}

// askLimit is how long to wait for the answer of a shim, which may hang.
const askLimit = time.Second

// Register adds the service to a server.
func Register(r grpc.ServiceRegistrar, s Shims) { nodev1.RegisterNodeServer(r, &service{shims: s}) }

type service struct {
	nodev1.UnimplementedNodeServer
	shims Shims
}

func (s *service) ListShims(ctx context.Context, _ *nodev1.ListShimsRequest) (*nodev1.ListShimsResponse, error) {
	return &nodev1.ListShimsResponse{Shims: s.list(ctx, nil)}, nil
}

func (s *service) RestartShims(ctx context.Context, r *nodev1.RestartShimsRequest) (*nodev1.RestartShimsResponse, error) {
	names := r.GetNames()
	if len(names) == 0 {
		for _, shim := range s.shims.Shims() {
			names = append(names, shim.Name)
		}
	}
	for _, name := range names {
		if err := s.shims.RestartShim(ctx, name); err != nil {
			return nil, withCode(err)
		}
	}
	return &nodev1.RestartShimsResponse{Shims: s.list(ctx, names)}, nil
}

// list describes the shims with these names, or all.
func (s *service) list(ctx context.Context, names []string) (all []*nodev1.Shim) {
	for _, shim := range s.shims.Shims() {
		if names != nil && !slices.Contains(names, shim.Name) {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, askLimit)
		version, _ := s.shims.ShimVersion(ask, shim.Name) // a shim that does not answer has a problem
		cancel()
		all = append(all, &nodev1.Shim{
			Name: shim.Name, Pid: uint32(shim.PID), Version: version, Starts: uint32(shim.Starts),
			LastExit: shim.LastExit, Problem: shim.Problem,
		})
	}
	return all
}

func withCode(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, client.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, client.ErrUnavailable):
		code = codes.Unavailable
	}
	return status.Error(code, err.Error())
}
