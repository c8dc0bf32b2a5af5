package cri

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/errdefs"
)

// Answers of every size that gRPC has buffers for are what the client decodes.
func TestListsOfAnyLength(t *testing.T) {
	for _, n := range []int{0, 1, 3, 100, 5000} {
		d := &double{}
		for i := range n {
			p, c := pod.Pod{ID: fmt.Sprint("pod", i)}, aContainer()
			c.ID = fmt.Sprint("container", i)
			d.pods, d.containers = append(d.pods, p), append(d.containers, c)
		}
		e := serve(t, d)
		pods, err := e.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(pods.GetItems()) != n {
			t.Fatalf("%d pods of %d, %v", len(pods.GetItems()), n, err)
		}
		containers, err := e.runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		if err != nil || len(containers.GetContainers()) != n {
			t.Fatalf("%d containers of %d, %v", len(containers.GetContainers()), n, err)
		}
		for i := range n {
			if got := pods.GetItems()[i].GetId(); got != d.pods[i].ID {
				t.Errorf("pod %d is %q", i, got)
			}
			if got := containers.GetContainers()[i].GetId(); got != d.containers[i].ID {
				t.Errorf("container %d is %q", i, got)
			}
		}
	}
}

// A field more, in a release of CRI to come, would be left out without a word.
func TestListsHaveItemsAlone(t *testing.T) {
	for _, m := range []proto.Message{
		&runtimeapi.ListPodSandboxResponse{}, &runtimeapi.StreamPodSandboxesResponse{},
		&runtimeapi.ListContainersResponse{}, &runtimeapi.StreamContainersResponse{},
	} {
		fields := m.ProtoReflect().Descriptor().Fields()
		if fields.Len() != 1 || fields.Get(0).Number() != itemsField || !fields.Get(0).IsList() {
			t.Errorf("%T has other fields: %v", m, fields)
		}
	}
}

func TestListsThatFail(t *testing.T) {
	d := &double{fail: map[string]error{"Pods": errors.New("broken"), "Containers": fmt.Errorf("%w: broken", errdefs.ErrUnavailable)}}
	e := serve(t, d)
	if _, err := e.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); status.Code(err) != codes.Unknown {
		t.Errorf("error %v", err)
	}
	if _, err := e.runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("error %v", err)
	}
	containers, err := e.runtime.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{})
	if err == nil {
		_, err = containers.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("error %v", err)
	}
	// A name that is no text (protobuf's strings are UTF-8) is an error too, and not an answer that
	// no one can read.
	bad := aContainer()
	bad.Config.Name = "\xff"
	e = serve(t, &double{containers: []pod.Container{bad}})
	if _, err := e.runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err == nil {
		t.Error("a name that is not UTF-8 was sent")
	}
}
