package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/exec"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
	"github.com/coracle-project/coracle/cluster/kubelet/images"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

// bench is a runner on a runtime in memory. The test is the API: what it has of pods changes only
// by the runner's writes and the test's own.
type bench struct {
	t       *testing.T
	runtime *critest.Fake
	runner  *Runner
	kube    *fake.Clientset
	edges   *edges
	events  *record.FakeRecorder
	full    atomic.Pointer[string] // why no resize fits
	unready atomic.Bool            // commands in containers fail
	end     func()                 // ends the kubelet, but for its probes
}

// edges are volumes, environment, cgroups and DNS that do nothing, or fail as told.
type edges struct {
	mu        sync.Mutex
	mountErr  error
	envErr    error
	cgroupErr error
	lowerErr  error
	memory    int64 // limit of the pod's cgroup
	done      []string
}

func (e *edges) note(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done = append(e.done, what)
}

func (e *edges) set(mount, env error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mountErr, e.envErr = mount, env
}

func (e *edges) Mount(context.Context, *v1.Pod) error {
	e.note("mount")
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mountErr
}

func (e *edges) Refresh(context.Context, *v1.Pod) error {
	e.note("refresh")
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mountErr
}
func (e *edges) Stopped(types.UID)                        { e.note("stopped") }
func (e *edges) Unmount(context.Context, types.UID) error { e.note("unmount"); return nil }
func (e *edges) Mounts(_ context.Context, _ *v1.Pod, c *v1.Container, _ []*runtimeapi.KeyValue) ([]*runtimeapi.Mount, error) {
	mounts := make([]*runtimeapi.Mount, len(c.VolumeMounts))
	for i := range mounts {
		mounts[i] = &runtimeapi.Mount{ContainerPath: c.VolumeMounts[i].MountPath}
	}
	return mounts, nil
}

func (e *edges) Devices(context.Context, *v1.Pod, *v1.Container) ([]*runtimeapi.Device, error) {
	return nil, nil
}

func (e *edges) Resolve(_ context.Context, _ *v1.Pod, c *v1.Container, _, _ []string) ([]*runtimeapi.KeyValue, []string, []string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return nil, c.Command, c.Args, e.envErr
}
func (e *edges) Of(*v1.Pod) (*runtimeapi.UserNamespace, error) { return nil, nil }
func (e *edges) Release(types.UID)                             { e.note("release ids") }
func (e *edges) Parent(*v1.Pod) string                         { return "" }
func (e *edges) Container() map[string]string                  { return nil }
func (e *edges) Remove(types.UID) error {
	e.note("remove cgroup")
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cgroupErr
}

// Ensure raises the memory limit of the only pod, and notes it.
func (e *edges) Ensure(p *v1.Pod) (exact bool, err error) {
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	e.mu.Lock()
	defer e.mu.Unlock()
	if want := limits.Memory().Value(); e.memory == 0 || want > e.memory {
		e.memory = want
	}
	return e.memory == limits.Memory().Value(), nil
}

// Lower sets the memory limit, unless that fails as told.
func (e *edges) Lower(p *v1.Pod) error {
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lowerErr == nil {
		e.memory = limits.Memory().Value()
	}
	return e.lowerErr
}

func (e *edges) GetPodDNS(context.Context, *v1.Pod) (*runtimeapi.DNSConfig, error) {
	return &runtimeapi.DNSConfig{}, nil
}

// onBench runs f in a bubble. The runtime has no events: the test wakes pods when it changed
// something.
func onBench(t *testing.T, f func(b *bench)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, runtime: critest.New("i:1"), kube: fake.NewClientset(), edges: &edges{}, events: record.NewFakeRecorder(1000)}
		client := b.runtime.Client()
		puller, err := images.NewPuller(client, b.events, nil, dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		b.end = cancel
		writer := status.NewWriter(ctx, b.kube, slog.New(slog.DiscardHandler))
		probes := probe.New(b.exec, b.events, func(uid types.UID) { b.runner.Wake(uid) })
		b.runner = NewRunner(ctx, Config{
			CRI: client, Images: puller, Volumes: b.edges, Env: b.edges, Cgroups: b.edges, Users: b.edges, DNS: b.edges,
			Probes: probes, Status: writer, Recorder: b.events,
			AdmitResize: func(_ *v1.Pod, accept func()) (string, bool) {
				if why := b.full.Load(); why != nil {
					return *why, false
				}
				accept()
				return "", true
			},
			RuntimeHandler: func(*string) (string, error) { return "", nil }, HostIPs: func() []string { return []string{"192.0.2.1"} },
			RootDir: filepath.Join(dir, "root"), Logs: podlogs.Dirs{All: filepath.Join(dir, "logs")}, MemoryCapacity: 4 << 30,
		})
		defer writer.Wait()
		defer b.runner.Wait()
		defer cancel()
		defer probes.Close()
		f(b)
	})
}

// exec runs a command in a container.
func (b *bench) exec(context.Context, string, []string, time.Duration) ([]byte, error) {
	if b.unready.Load() {
		return nil, exec.CodeExitError{Err: errors.New("not ready"), Code: 1}
	}
	return nil, nil
}

// run gives a pod to the API and to the runner.
func (b *bench) run(p *v1.Pod) *v1.Pod {
	b.t.Helper()
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			list[i].ImagePullPolicy = v1.PullIfNotPresent
		}
	}
	p, err := b.kube.CoreV1().Pods(p.Namespace).Create(b.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.runner.Status.Object(p.UID, p)
	b.runner.Apply(p)
	synctest.Wait()
	return p
}

// delete starts the graceful deletion of the only pod.
func (b *bench) delete() *v1.Pod {
	b.t.Helper()
	p, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(time.Now())), ptr.To(int64(30))
	if p, err = b.kube.CoreV1().Pods("ns").Update(b.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.runner.Status.Object(p.UID, p)
	b.runner.Apply(p)
	synctest.Wait()
	return p
}

// exit ends a container and has the runner see it.
func (b *bench) exit(p *v1.Pod, name string, code int32) {
	b.runtime.Exit(name, code)
	b.runner.Wake(p.UID)
	synctest.Wait()
}

// waits returns why the pod's only container waits, or what else it does.
func (b *bench) waits(p *v1.Pod) string {
	b.t.Helper()
	v, ok := b.runner.View(p.UID)
	if !ok || len(v.Pod.Status.ContainerStatuses) == 0 {
		return "nothing known"
	}
	s := v.Pod.Status.ContainerStatuses[0].State
	switch {
	case s.Waiting != nil:
		return s.Waiting.Reason + ": " + s.Waiting.Message
	case s.Running != nil:
		return "running"
	default:
		return fmt.Sprintf("terminated %d", s.Terminated.ExitCode)
	}
}

func (b *bench) wantWaits(p *v1.Pod, want string) {
	b.t.Helper()
	if got := b.waits(p); got != want {
		b.t.Errorf("the container: %q, want %q", got, want)
	}
}

func (b *bench) wantCalls(want ...string) {
	b.t.Helper()
	if got := b.runtime.Calls(); !slices.Equal(got, want) {
		b.t.Errorf("calls %v, want %v", got, want)
	}
}

func (b *bench) wantEvent(want string) {
	b.t.Helper()
	for {
		select {
		case got := <-b.events.Events:
			if strings.HasPrefix(got, want) {
				return
			}
		default:
			b.t.Errorf("no event %q", want)
			return
		}
	}
}
