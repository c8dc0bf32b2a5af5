package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/errdefs"
)

func TestErrorsBecomeCodes(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK},
		{errors.New("umount: busy"), codes.Unknown},
		{errdefs.ErrNotFound, codes.NotFound},
		{errdefs.ErrInvalid, codes.InvalidArgument},
		{errdefs.ErrExists, codes.AlreadyExists},
		{errdefs.ErrPrecondition, codes.FailedPrecondition},
		{errdefs.ErrUnsupported, codes.Unimplemented},
		{errdefs.ErrExhausted, codes.ResourceExhausted},
		{errdefs.ErrUnavailable, codes.Unavailable},
		{image.ErrNotFound, codes.NotFound},
		{image.ErrInvalidReference, codes.InvalidArgument},
		{image.ErrUnauthorized, codes.Unauthenticated},
		{image.ErrUnavailable, codes.Unavailable},
		{image.ErrInvalidImage, codes.InvalidArgument},
		{image.ErrUntrusted, codes.PermissionDenied},
		{image.ErrNoKey, codes.PermissionDenied},
		{image.ErrPlatform, codes.NotFound},
		{image.ErrLayerInUse, codes.FailedPrecondition},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{&os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}, codes.ResourceExhausted},
		{syscall.EDQUOT, codes.ResourceExhausted},
		{syscall.ENOMEM, codes.ResourceExhausted},
		// The precondition is what the caller can fix, however it was found out.
		{fmt.Errorf("%w: %w", errdefs.ErrPrecondition, errdefs.ErrNotFound), codes.FailedPrecondition},
		{fmt.Errorf("%w: %w", image.ErrUnavailable, context.DeadlineExceeded), codes.DeadlineExceeded},
		// Regression: the code that another protocol's error carries won over the kind.
		{fmt.Errorf("%w: %w", errdefs.ErrUnavailable, status.Error(codes.Unknown, "shim")), codes.Unavailable},
		{status.Error(codes.Aborted, "as it was"), codes.Aborted},
	} {
		err := tt.err
		if err != nil && status.Code(err) == codes.Unknown {
			err = fmt.Errorf("start container c1: %w", err)
		}
		got := toStatus(err)
		if status.Code(got) != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, status.Code(got), tt.want)
		}
		if s, _ := status.FromError(got); err != nil && !strings.Contains(s.Message(), "c1") && tt.want != codes.Aborted {
			t.Errorf("%v lost its text: %q", tt.err, s.Message())
		}
	}
}

// The kubelet compares the beginning of the text that cri-client gives it: the message if the code
// is Unknown, else the whole error.
func TestPullErrorsBeginWithTheirName(t *testing.T) {
	for err, want := range map[error]string{
		image.ErrUntrusted:   "SignatureValidationFailed: pull x: image is not trusted",
		image.ErrUnavailable: "RegistryUnavailable: pull x: registry unreachable",
		image.ErrNotFound:    "rpc error: code = NotFound desc = pull x: image not found",
	} {
		got := toStatus(pullError(fmt.Errorf("pull x: %w", err)))
		sees := got.Error()
		if status.Code(got) == codes.Unknown {
			sees = status.Convert(got).Message()
		}
		if sees != want {
			t.Errorf("%q, want %q", sees, want)
		}
	}
}

// alone are the methods that answer an empty request; the others miss an argument.
var alone = strings.Fields(`
	Version Status RuntimeConfig UpdateRuntimeConfig GetContainerEvents
	ListPodSandbox ListContainers ListImages ListContainerStats ListPodSandboxStats ListMetricDescriptors ListPodSandboxMetrics
	StreamPodSandboxes StreamContainers StreamImages StreamContainerStats StreamPodSandboxStats StreamPodSandboxMetrics
	ImageFsInfo`)

// TestEveryMethod calls every method of both services with an empty request: what needs
// an argument must miss it.
func TestEveryMethod(t *testing.T) {
	events := make(chan pod.Event, 1)
	events <- pod.Event{}
	e := serve(t, &double{events: events})
	want := map[string]codes.Code{}
	for _, name := range alone {
		want[name] = codes.OK
	}
	services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			name := string(m.Name())
			t.Run(name, func(t *testing.T) {
				expected, listed := want[name]
				if !listed {
					expected = codes.InvalidArgument
				}
				if code := status.Code(callEmpty(t, e.conn, m)); code != expected {
					t.Errorf("%v, want %v", code, expected)
				}
				delete(want, name)
			})
		}
	}
	if len(want) > 0 {
		t.Errorf("not methods of CRI: %v", want)
	}
}

func callEmpty(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor) error {
	return callWith(t.Context(), conn, m, dynamicpb.NewMessage(m.Input()))
}

// callWith makes a call, of a stream only to its first answer.
func callWith(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, in proto.Message) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	path := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	out := dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, path, in, out)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path)
	if err != nil {
		return err
	}
	if err := s.SendMsg(in); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if err := s.RecvMsg(out); !errors.Is(err, io.EOF) {
		return err
	}
	return nil // an empty list
}

// idCalls are the calls that pass an id on and return the error they get.
var idCalls = map[string]func(e *edge, ctx context.Context) error{
	"Stop": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: "x"})
		return err
	},
	"Remove": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "x"})
		return err
	},
	"Pod": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "x"})
		return err
	},
	"Create": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: "x", Config: fullContainerConfig()})
		return err
	},
	"Run": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: fullPodConfig()})
		return err
	},
	"StartContainer": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: "x"})
		return err
	},
	"StopContainer": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: "x"})
		return err
	},
	"RemoveContainer": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: "x"})
		return err
	},
	"Container": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: "x"})
		return err
	},
	"UpdateResources": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: "x"})
		return err
	},
	"ReopenLog": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: "x"})
		return err
	},
	"ExecSync": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: "x", Cmd: []string{"true"}})
		return err
	},
	"CheckExec": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: "x", Cmd: []string{"true"}, Stdout: true})
		return err
	},
	"CheckAttach": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: "x", Stdout: true})
		return err
	},
	"CheckPod": func(e *edge, ctx context.Context) error {
		_, err := e.runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: "x", Port: []int32{80}})
		return err
	},
	"Pull": func(e *edge, ctx context.Context) error {
		_, err := e.image.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec("web")})
		return err
	},
}

func TestErrorsOfEveryCallComeThrough(t *testing.T) {
	e := serve(t, &double{fail: map[string]error{}, images: []image.Image{anImage()}})
	for method, do := range idCalls {
		t.Run(method, func(t *testing.T) {
			e.fail[method] = fmt.Errorf("%s x: %w: stopped", method, errdefs.ErrPrecondition)
			err := do(e, t.Context())
			if s, _ := status.FromError(err); s.Code() != codes.FailedPrecondition || s.Message() != method+" x: failed precondition: stopped" {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestPanicIsInternalAndTheServerLives(t *testing.T) {
	e := serve(t, &double{}) // without images, Pull panics
	_, err := e.image.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: spec("web")})
	if status.Code(err) != codes.Internal {
		t.Fatalf("%v, want Internal", err)
	}
	if log := e.log.String(); !strings.Contains(log, "index out of range") || !strings.Contains(log, "images.go") {
		t.Errorf("no stack in the log: %s", log)
	}
	if _, err := e.runtime.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Errorf("after the panic: %v", err)
	}
}

func TestOneLogLineForEachCall(t *testing.T) {
	e := serve(t, &double{fail: map[string]error{"StartContainer": errdefs.ErrNotFound}})
	if _, err := e.runtime.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.runtime.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: "x"}); err == nil {
		t.Fatal("started")
	}
	log := strings.Split(strings.TrimSpace(e.log.String()), "\n")
	if len(log) != 2 || !strings.Contains(log[0], "level=DEBUG msg=call method=Version took=") ||
		!strings.Contains(log[1], "level=INFO msg=call method=StartContainer") || !strings.Contains(log[1], "code=NotFound") {
		t.Errorf("log %q", log)
	}
}

func TestCalledIsToldOfEveryCall(t *testing.T) {
	type seen struct {
		method string
		code   codes.Code
	}
	calls, pulled := make(chan seen, 10), make(chan int64, 10)
	e := serve(t, &double{fail: map[string]error{}, images: []image.Image{{Size: 99}}}, func(_ *Config, d *Deps) {
		d.Called = func(method string, code codes.Code, _ time.Duration) { calls <- seen{method, code} }
		d.Pulled = func(bytes int64) { pulled <- bytes }
	})
	if _, err := e.image.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "x"}}); err != nil {
		t.Fatal(err)
	}
	if got, want := <-calls, (seen{"PullImage", codes.OK}); got != want || <-pulled != 99 {
		t.Errorf("%v", got)
	}
	e.fail["Stop"] = errdefs.ErrPrecondition
	_, _ = e.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "x"})
	if got, want := <-calls, (seen{"StopPodSandbox", codes.FailedPrecondition}); got != want {
		t.Errorf("%v", got)
	}
}

func TestWorkedIsToldOfWorkOnly(t *testing.T) {
	e := serve(t, &double{})
	if _, err := e.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "p"}); err != nil {
		t.Fatal(err)
	}
	if n := len(e.worked); n != 1 {
		t.Errorf("told %d times", n)
	}
}

func TestHugeMessageIsRefused(t *testing.T) {
	e := serve(t, &double{})
	_, err := e.runtime.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "c", Cmd: []string{strings.Repeat("x", maxMessage+1)}})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want ResourceExhausted", status.Code(err))
	}
	if len(e.calls) != 0 {
		t.Errorf("it was called: %v", e.calls[0].method)
	}
}
