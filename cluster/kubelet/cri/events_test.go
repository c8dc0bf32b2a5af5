package cri_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
)

func TestWatchListsARuntimeWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := critest.New("i")
		c := f.Client()
		var mu sync.Mutex
		var told []types.UID
		take := func() []types.UID {
			mu.Lock()
			defer mu.Unlock()
			all := told
			told = nil
			return all
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go c.Watch(ctx, slog.New(slog.DiscardHandler), func(uid types.UID) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, uid)
		}, func() {})
		run(t, f, "u1", "a")
		run(t, f, "u2", "b")
		time.Sleep(1100 * time.Millisecond)
		if got := take(); !slices.Contains(got, "u1") || !slices.Contains(got, "u2") {
			t.Errorf("told of %v", got)
		}
		time.Sleep(5 * time.Second)
		if got := take(); len(got) != 0 {
			t.Errorf("told of %v and nothing happened", got)
		}
		f.Exit("a", 1)
		time.Sleep(1100 * time.Millisecond)
		if got := take(); !slices.Equal(got, []types.UID{"u1"}) {
			t.Errorf("after an exit: told of %v", got)
		}
		time.Sleep(3 * time.Minute) // over the times at which events are asked for again
		if got := take(); len(got) != 0 {
			t.Errorf("told of %v and nothing happened", got)
		}
	})
}

// stream is one of events whose header comes when the test says so.
type stream struct {
	grpc.ClientStream // nothing else is called
	ctx               context.Context
	begun             chan struct{}
}

func (s *stream) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	s.ctx = ctx
	return s, nil
}

func (s *stream) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return grpcstatus.Error(codes.Unimplemented, "there is only the stream")
}

func (s *stream) SendMsg(any) error { return nil }
func (s *stream) CloseSend() error  { return nil }

func (s *stream) Header() (metadata.MD, error) {
	select {
	case <-s.begun:
		return metadata.MD{}, nil
	case <-s.ctx.Done():
		return nil, nil
	}
}

func (s *stream) RecvMsg(any) error {
	<-s.ctx.Done()
	return s.ctx.Err()
}

// An event from before the stream is lost to it. A runtime, or machine, that takes its time to
// begin one made kubelets miss what happened meanwhile.
func TestAStreamThatBeginsLateIsPrecededByNothingUnseen(t *testing.T) {
	for _, test := range []struct {
		name   string
		begins time.Duration
		before int32 // resyncs until then
	}{
		{"at once", 0, 0},
		{"late", 10 * time.Second, 3},
		{"very late", time.Hour, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stream{begun: make(chan struct{})}
				if test.begins == 0 {
					close(s.begun)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var resyncs atomic.Int32
				go cri.NewClient(s).Watch(ctx, slog.New(slog.DiscardHandler), func(types.UID) {}, func() { resyncs.Add(1) })
				if test.begins > 0 {
					time.Sleep(test.begins)
					if n := resyncs.Load(); n != test.before {
						t.Errorf("%d resyncs before the stream has begun", n)
					}
					close(s.begun)
				}
				synctest.Wait()
				if n := resyncs.Load(); n != test.before+1 {
					t.Errorf("%d resyncs when the stream has begun", n)
				}
				time.Sleep(time.Hour)
				if n := resyncs.Load(); n != test.before+1 {
					t.Errorf("%d resyncs, and nothing happened", n)
				}
			})
		})
	}
}

func TestPodTellsTheNewestFirst(t *testing.T) {
	f := critest.New("i")
	run(t, f, "u1", "a")
	run(t, f, "u1", "a")
	run(t, f, "u2", "b")
	p, err := f.Client().Pod(t.Context(), "u1")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.SandboxStatuses) != 2 || p.SandboxStatuses[0].Id != "sandbox-3" || len(p.ContainerStatuses) != 2 ||
		p.ContainerStatuses[0].ID.String() != "fake://container-4" || len(p.ActiveContainerStatuses) != 1 || p.IPs[0] != "10.0.0.3" {
		t.Errorf("%+v", p)
	}
	none, err := f.Client().Pod(t.Context(), "nobody")
	if err != nil || len(none.SandboxStatuses)+len(none.ContainerStatuses) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
}

// run makes a pod with one container as a kubelet would, only shorter.
func run(t *testing.T, f *critest.Fake, uid, name string) {
	t.Helper()
	labels := map[string]string{"io.kubernetes.pod.uid": uid, "io.kubernetes.container.name": name}
	s, err := f.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid}, Labels: labels,
	}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.CreateContainer(t.Context(),
		&runtimeapi.CreateContainerRequest{PodSandboxId: s.PodSandboxId, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Labels: labels, Image: &runtimeapi.ImageSpec{Image: "i"},
		}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		t.Fatal(err)
	}
}
