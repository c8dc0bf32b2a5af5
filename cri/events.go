package cri

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/pod"
)

// Events are what becomes of pods and containers.
type Events interface {
	Watch() (events <-chan pod.Event, stop func())
}

var eventTypes = map[pod.EventKind]runtimeapi.ContainerEventType{
	pod.EventCreated: runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT,
	pod.EventStarted: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
	pod.EventStopped: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT,
	pod.EventDeleted: runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
}

// GetContainerEvents streams what becomes of pods and containers, each with the state of its pod
// and of all the pod's containers as it is when the event is sent. A client that reads too slowly
// is told so and cut off: it has to list and begin again.
func (s *service) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	events, stop := s.events.Watch()
	defer stop()
	// The client knows that nothing escapes it from here on.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return status.Error(codes.ResourceExhausted, "events were not read quickly enough, or the daemon is shutting down: list, and ask again")
			}
			if err := stream.Send(s.event(e)); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.ending:
			return status.Error(codes.Unavailable, "the daemon is shutting down")
		}
	}
}

func (s *service) event(e pod.Event) *runtimeapi.ContainerEventResponse {
	out := &runtimeapi.ContainerEventResponse{
		ContainerId: e.ID, ContainerEventType: eventTypes[e.Kind], CreatedAt: convert.Nanos(e.At),
	}
	p, err := s.sandboxes.Pod(e.PodID)
	if err != nil {
		return out // it is gone by now
	}
	out.PodSandboxStatus, out.ContainersStatuses = convert.PodStatus(p), s.containerStatuses(p.ID)
	return out
}
