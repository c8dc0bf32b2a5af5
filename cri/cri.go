// Package cri is the Container Runtime Interface of the node: the two gRPC
// services of k8s.io/cri-api (runtime.v1.RuntimeService and ImageService) and the
// HTTP server for exec, attach and port forwarding.
//
// It is a thin edge. A method checks what only the wire format can get wrong,
// turns the request into a value of pod/ or image/, makes one call, and turns the
// answer back. What a call does, and in which state it may be made, is decided
// behind Pods and Images. Errors become status codes in one place (errors.go), each
// call is logged in one place (intercept.go).
//
// # Which file
//
//	sandbox.go, container.go, checkpoint.go, images.go, events.go, stats.go, metrics.go, status.go   the methods by theme
//	encoded.go                                                 lists of pods and containers, put together from encoded items
//	paging.go                                                  the Stream forms of the lists
//	convert_*.go                                               proto ↔ Go values, no I/O
//	streaming.go, tokens.go                                    Exec, Attach, PortForward
//	command.go, websocket.go, spdy.go                          the protocol of the first two
//	server.go                                                  limits, Serve, Stop
package cri

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod"
)

// Pods are the node's pods and containers. pod.Manager implements it; its package comment says how
// each method behaves. Each part is with the handlers that call it.
type Pods interface {
	Sandboxes
	Containers
	Checkpoints
	Sessions
	Statistics
	Node
	Events
}

// Images is what the edge asks of the image store; image.Store implements it.
type Images interface {
	Pull(ctx context.Context, ref string, o image.PullOptions) (image.Image, error)
	// Get finds an image by name, digest, id or unique prefix of an id.
	Get(ref string) (image.Image, error)
	List() []image.Image
	Remove(ctx context.Context, ref string) error
	// Usage is what all images take, from memory.
	Usage() (bytes, inodes int64, err error)
}

// Config is what the edge says of itself and of the node; it never changes.
type Config struct {
	// Version is the runtime's version as Version reports it.
	Version string
	// SystemdCgroup says which cgroup driver the kubelet must use.
	SystemdCgroup bool
	// Handlers returns the runtime handlers that Pods.Run accepts, the unnamed one included.
	Handlers func() []Handler
	// ImageFS is the directory whose file system holds images and writable layers.
	ImageFS string
	// StreamAddress is the host:port of the HTTP server for exec, attach and port
	// forwarding; port 0 takes a free one.
	StreamAddress string
	// Info returns what a verbose Status shows, by key.
	Info func() map[string]any
}

// Handler is a runtime handler and what it can do.
type Handler struct {
	Name string
	// RecursiveReadonly: mounts can be read-only with all below them. UserNamespaces: pods can
	// have their own.
	RecursiveReadonly, UserNamespaces bool
}

// Deps are the parts behind the edge.
type Deps struct {
	Pods   Pods
	Images Images
	// RuntimeReady returns why containers cannot be started now; nil if they can. It must not
	// block. May be nil.
	RuntimeReady func() error
	// BuiltInNetwork returns why the built-in network connects the next pod, "" if CNI plugins do.
	// It must not block. May be nil.
	BuiltInNetwork func() string
	// Spec reads a container's OCI spec for a verbose ContainerStatus. May be nil.
	Spec func(c pod.Container) (json.RawMessage, error)
	// Unpack, if not nil, is called after each pull for a runtime handler other than the unnamed
	// one, with its name.
	Unpack func(ctx context.Context, handler string, img *image.Image) error
	// Worked, if not nil, is called after each call that was not a mere
	// question. It must not block.
	Worked func()
	// Called, if not nil, is called after each call with its method's name, status and
	// duration, Pulled after each pull of an image with its size in bytes. They must not block.
	Called func(method string, code codes.Code, took time.Duration)
	Pulled func(bytes int64)
	// Options are more options of the gRPC server.
	Options []grpc.ServerOption
	Log     *slog.Logger
	// Services, if not nil, adds services of its own to the server. Their calls are
	// logged and their errors become statuses as CRI's do.
	Services func(grpc.ServiceRegistrar)
}

// service implements both CRI services. What it does not define answers
// Unimplemented.
type service struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	config Config
	deps   Deps

	// The parts of deps.Pods, each for the handlers next to its type.
	sandboxes   Sandboxes
	containers  Containers
	checkpoints Checkpoints
	sessions    Sessions
	statistics  Statistics
	node        Node
	events      Events

	stream *streamServer
	// ending is closed when the server starts to stop: no one waits for streams.
	ending <-chan struct{}
}

func newService(c Config, d Deps) *service {
	p := d.Pods
	return &service{
		config: c, deps: d, sandboxes: p, containers: p, checkpoints: p, sessions: p, statistics: p, node: p, events: p,
	}
}
