package workload

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/daemon/daemontest"
)

func TestHappenings(t *testing.T) {
	pod := &runtimeapi.PodSandboxStatus{Id: "p1", Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "shop", Name: "web"}}
	main := &runtimeapi.ContainerStatus{Id: "c1", Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, ExitCode: 3, Reason: "Error"}
	known := roster{}
	for _, tc := range []struct {
		name  string
		event *runtimeapi.ContainerEventResponse
		line  string
	}{
		{"a pod", &runtimeapi.ContainerEventResponse{
			ContainerId: "p1", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, PodSandboxStatus: pod,
		}, "started   pod shop/web (p1)"},
		{"a container", &runtimeapi.ContainerEventResponse{
			ContainerId: "c1", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, PodSandboxStatus: pod,
			ContainersStatuses: []*runtimeapi.ContainerStatus{main},
		}, "created   container shop/web/main (c1)"},
		{"its end", &runtimeapi.ContainerEventResponse{
			ContainerId: "c1", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, PodSandboxStatus: pod,
			ContainersStatuses: []*runtimeapi.ContainerStatus{main},
		}, "stopped   container shop/web/main (c1) exit code 3, Error"},
		{"what is gone, and was known", &runtimeapi.ContainerEventResponse{
			ContainerId: "c1", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
		}, "deleted   container shop/web/main (c1)"},
		{"what is gone, and was not", &runtimeapi.ContainerEventResponse{
			ContainerId: "c2", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
		}, "deleted   container c2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if line := known.name(tc.event).line(); !strings.HasSuffix(line, "  "+tc.line) {
				t.Errorf("%q, want %q", line, tc.line)
			}
		})
	}
}

// Regression: events ended when coracled was restarted, and when that one was killed before it had
// listed its pods.
func TestEventsOutliveCoracled(t *testing.T) {
	m := newMachine(t, "boat")
	stop := daemontest.Serve(t, m.Socket(), daemontest.Runtime{Pod: "before"})
	lines, end := m.follow(t, "events")
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("%q, want %s; %v", lines.Text(), want, lines.Err())
		}
	}
	next("started   pod shop/before")
	stop()
	next("the stream of events ended")
	listed := make(chan struct{})
	stop = daemontest.Serve(t, m.Socket(), daemontest.Runtime{Pod: "between", Listed: listed})
	<-listed
	stop()
	daemontest.Serve(t, m.Socket(), daemontest.Runtime{Pod: "after"})
	next("started   pod shop/after")
	if err := end(); err != nil {
		t.Error(err)
	}
}
