package cri

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod"
)

// watch starts a stream and returns when nothing escapes it any more.
func watch(t *testing.T, e *edge) grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse] {
	t.Helper()
	stream, err := e.runtime.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestContainerEvents(t *testing.T) {
	at := time.Unix(100, 5)
	events := make(chan pod.Event, 4)
	e := serve(t, &double{
		events:     events,
		pods:       []pod.Pod{{ID: "p1", State: pod.Ready}},
		containers: []pod.Container{{ID: "c1", PodID: "p1", State: pod.Exited, ExitCode: 3, ImageID: anImage().ID.String()}},
		images:     []image.Image{anImage()},
	})
	stream := watch(t, e)
	events <- pod.Event{Kind: pod.EventStopped, ID: "c1", PodID: "p1", At: at}
	got, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got.ContainerId != "c1" || got.ContainerEventType != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT ||
		got.CreatedAt != at.UnixNano() {
		t.Errorf("the event is %v", got)
	}
	if got.PodSandboxStatus.GetId() != "p1" || len(got.ContainersStatuses) != 1 || got.ContainersStatuses[0].ExitCode != 3 {
		t.Errorf("the event's states are %v and %v", got.PodSandboxStatus, got.ContainersStatuses)
	}
	if name := got.ContainersStatuses[0].GetImage().GetImage(); name != anImage().RepoTags[0] {
		t.Errorf("the image is called %q", name)
	}
	// Of a pod that is gone there is only the event.
	events <- pod.Event{Kind: pod.EventDeleted, ID: "p2", PodID: "p2", At: at}
	if got, err = stream.Recv(); err != nil || got.ContainerId != "p2" || got.PodSandboxStatus != nil || len(got.ContainersStatuses) != 0 {
		t.Errorf("the event of a pod that is gone is %v, %v", got, err)
	}
	// A watcher that has lost its place is told.
	close(events)
	if _, err = stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("after the end of events: %v, want ResourceExhausted", err)
	}
	if c := e.last(t); c.method != "unwatch" {
		t.Errorf("the last call is %v, want the end of the watch", c)
	}
}

// The daemon's end is not held up by watchers.
func TestEventsEndWithTheServer(t *testing.T) {
	e := serve(t, &double{})
	stream := watch(t, e)
	e.server.Stop(context.Background()) // with no deadline: it returns by itself
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("after Stop: %v, want Unavailable", err)
	}
}
