// Package daemontest stands in for coracled in tests of the commands that ask it.
package daemontest

import (
	"context"
	"net"
	"os"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a coracled with one pod, whose one event is that it was started.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	// Pod is the pod's id and name.
	Pod string
	// Listed, if not nil, is closed when its pods are asked for, which it does not answer.
	Listed chan struct{}
	// Idle is whether it runs nothing.
	Idle bool
}

// ListPodSandbox returns the pod, or waits for the end of ctx if there is Listed.
func (r Runtime) ListPodSandbox(ctx context.Context, _ *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	if r.Listed != nil {
		close(r.Listed)
		<-ctx.Done()
	}
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{
		Id:       r.Pod,
		Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "shop", Name: r.Pod},
	}}}, nil
}

// ListPodSandboxStats returns the pod, which uses nothing; without it if Idle.
func (r Runtime) ListPodSandboxStats(context.Context,
	*runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	if r.Idle {
		return &runtimeapi.ListPodSandboxStatsResponse{}, nil
	}
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: r.Pod, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "shop", Name: r.Pod},
		},
	}}}, nil
}

// Version returns that this is coracle.
func (Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "coracle", RuntimeVersion: "v0"}, nil
}

// ListContainers returns the pod's only container, main.
func (r Runtime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{
		Id: r.Pod + "-main", PodSandboxId: r.Pod, Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
	}}}, nil
}

// GetContainerEvents sends that the pod was started, and no more until the stream ends.
func (r Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	if err := stream.Send(&runtimeapi.ContainerEventResponse{
		ContainerId:        r.Pod,
		ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
	}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Dir returns a directory for sockets that goes with the test. Its path is short: those of sockets
// are limited.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "c-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Serve serves r at a socket until stop, or the end of the test. stop cuts connections as a kill
// does.
func Serve(t testing.TB, socket string, r Runtime) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(s, r)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = func() { s.Stop(); <-done }
	t.Cleanup(stop)
	return stop
}
