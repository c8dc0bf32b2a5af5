package cri

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/internal/testkit/spoil"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/errdefs"
)

// whole are requests with every field that has anything to do here set.
func whole() []proto.Message {
	return []proto.Message{
		&runtimeapi.RunPodSandboxRequest{Config: fullPodConfig(), RuntimeHandler: "coracle"},
		&runtimeapi.CreateContainerRequest{PodSandboxId: "p1", Config: fullContainerConfig(), SandboxConfig: fullPodConfig()},
		&runtimeapi.UpdateContainerResourcesRequest{ContainerId: "c1", Linux: fullResources()},
		&runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "p1", Overhead: fullResources()},
		&runtimeapi.RestorePodRequest{
			CheckpointPath: "/x", Config: fullPodConfig(),
			ContainerConfigs: []*runtimeapi.ContainerConfig{fullContainerConfig()},
		},
		&runtimeapi.CheckpointPodRequest{PodSandboxId: "p1", OutputPath: "/x", ContainerIds: []string{"c1"}},
		&runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: "x"}, Auth: &runtimeapi.AuthConfig{Auth: "eDp5", ServerAddress: "x"},
			SandboxConfig: fullPodConfig(),
		},
		&runtimeapi.UpdateRuntimeConfigRequest{
			RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "10.0.0.0/8"}},
		},
		&runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"x"}, Stdin: true},
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			Id: "c", State: &runtimeapi.ContainerStateValue{},
			LabelSelector: map[string]string{"a": "b"},
		}},
		&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
			Id: "p", State: &runtimeapi.PodSandboxStateValue{},
			LabelSelector: map[string]string{"a": "b"},
		}},
	}
}

// request is a method and a request of it.
type request struct {
	method protoreflect.MethodDescriptor
	whole  proto.Message
}

// requests has one for every method of both services: the whole one, or one in which every field
// has a value.
func requests(t testing.TB) []request {
	t.Helper()
	set := map[protoreflect.FullName]proto.Message{}
	for _, m := range whole() {
		set[m.ProtoReflect().Descriptor().FullName()] = m
	}
	var all []request
	services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			method := services.Get(i).Methods().Get(j)
			m, ok := set[method.Input().FullName()]
			if !ok {
				kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
				if err != nil {
					t.Fatal(err)
				}
				m = kind.New().Interface()
				fill(m.ProtoReflect())
			}
			all = append(all, request{method, m})
		}
	}
	return all
}

// fill gives every field a value that is not its zero.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("a").MapKey(), protoreflect.ValueOfString("b"))
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message())
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			m.Mutable(f).List().Append(protoreflect.ValueOfString("c1"))
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("c1"))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		}
	}
}

// TestSpoiltRequests: whatever is in a field of any request, the answer is one of the caller's
// faults or success, never ours.
func TestSpoiltRequests(t *testing.T) {
	e := serve(t, hostileDouble(), func(_ *Config, d *Deps) { d.Worked = nil })
	for _, r := range requests(t) {
		t.Run(string(r.method.Name()), func(t *testing.T) {
			n := 0
			for what, spoilt := range spoil.Each(r.whole, "/nowhere") {
				n++
				if testing.Short() && n%10 != 0 {
					continue // the race detector makes it slow, and one of ten finds the same races
				}
				if code := e.ask(t, r.method, spoilt); code == codes.Internal || code == codes.DeadlineExceeded {
					t.Errorf("%s: %v", what, code)
				}
			}
			if n == 0 && r.method.Input().Fields().Len() > 0 {
				t.Error("nothing was spoilt")
			}
		})
	}
}

func hostileDouble() *double {
	return &double{
		containers: []pod.Container{aContainer()}, pods: []pod.Pod{aPod()}, stats: make([]pod.ContainerStats, 1),
		podStats: make([]pod.PodStats, 1),
		fail:     map[string]error{"Pull": errdefs.ErrNotFound},
	}
}

// ask makes a call and returns its code.
func (e *edge) ask(t testing.TB, m protoreflect.MethodDescriptor, in proto.Message) codes.Code {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return status.Code(callWith(ctx, e.conn, m, in))
}

// FuzzRequests takes anything for a request of any method.
func FuzzRequests(f *testing.F) {
	e := serve(f, hostileDouble(), func(_ *Config, d *Deps) { d.Worked = nil })
	all := requests(f)
	for i, r := range all {
		b, err := proto.Marshal(r.whole)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		r := all[int(which)%len(all)]
		m := r.whole.ProtoReflect().New().Interface()
		if r.method.Name() == "GetContainerEvents" || proto.Unmarshal(b, m) != nil {
			return // what waits for events has no fields
		}
		if code := e.ask(t, r.method, m); code == codes.Internal || code == codes.DeadlineExceeded {
			t.Errorf("%s: %v", r.method.Name(), code)
		}
		switch m := m.(type) {
		case *runtimeapi.RunPodSandboxRequest:
			if c, err := convert.Pod(m.GetConfig(), m.GetRuntimeHandler()); err == nil {
				convert.PodBack(&c)
			}
		case *runtimeapi.CreateContainerRequest:
			if c, err := convert.Container(m.GetConfig()); err == nil {
				convert.ContainerBack(&c)
			}
		}
	})
}
