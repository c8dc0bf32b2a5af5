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
	"io"
	"iter"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Pods is what the edge asks of the node's pods and containers. pod.Manager
// implements it; its package comment says how each method behaves.
type Pods interface {
	// Ready returns why nothing can be started yet; nil if everything can.
	Ready() error
	Run(ctx context.Context, c podconfig.Pod) (string, error)
	Stop(ctx context.Context, podID string) error
	Remove(ctx context.Context, podID string) error
	Pod(podID string) (pod.Pod, error)
	PodItems(f pod.PodFilter, encode func(*pod.Pod) ([]byte, error)) ([][]byte, error)
	Watch() (events <-chan pod.Event, stop func())

	Create(ctx context.Context, podID string, c podconfig.Container) (string, error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	Container(id string) (pod.Container, error)
	Containers(f pod.ContainerFilter) iter.Seq[pod.Container]
	ContainerItems(f pod.ContainerFilter, encode func(*pod.Container) ([]byte, error)) ([][]byte, error)
	UpdatePodResources(ctx context.Context, podID string, overhead, resources *podconfig.Resources) error
	UpdateResources(ctx context.Context, id string, r podconfig.Resources, annotations map[string]string) error
	ReopenLog(ctx context.Context, id string) error
	Checkpoint(ctx context.Context, id, location string, timeout time.Duration) error
	CheckpointPod(ctx context.Context, podID, dir string, ids []string) error
	RestorePod(ctx context.Context, dir string, c podconfig.Pod, containers []podconfig.Container) (string, []pod.Restored, error)

	ExecSync(ctx context.Context, r pod.ExecRequest, timeout time.Duration) (pod.ExecSyncResult, error)
	Exec(ctx context.Context, r pod.ExecRequest) (int32, error)
	Attach(ctx context.Context, id string, tty bool, s pod.Streams) error
	PortForward(ctx context.Context, podID string, port int32, conn io.ReadWriteCloser) error
	CheckExec(id string) error
	CheckAttach(id string) error
	CheckPod(podID string) error

	Stats(ctx context.Context, id string) (pod.ContainerStats, error)
	ListStats(ctx context.Context, f pod.ContainerFilter) []pod.ContainerStats
	PodStats(ctx context.Context, podID string) (pod.PodStats, error)
	ListPodStats(ctx context.Context, f pod.PodStatsFilter) []pod.PodStats
	Processes(ctx context.Context, id string) (cgstat.Processes, error)
	NetworkReady(ctx context.Context) error
	SetPodCIDR(ctx context.Context, ranges []netip.Prefix) error
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
	// Spec reads a container's OCI spec for a verbose ContainerStatus. May be nil.
	Spec func(c pod.Container) (json.RawMessage, error)
	// EngineSteps tells, for a verbose ContainerStatus, where the engine's part of making a
	// container went. May be nil.
	EngineSteps func(c pod.Container) ([]pod.Step, error)
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
	stream *streamServer
	// ending is closed when the server starts to stop: no one waits for streams.
	ending <-chan struct{}
}
