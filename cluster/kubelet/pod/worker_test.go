package pod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
	"github.com/coracle-project/coracle/cluster/kubelet/images"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

// bench is a runner on a runtime in memory. The test is the API: what it has of pods changes only by
// the runner's writes and the test's own.
type bench struct {
	t       *testing.T
	runtime *critest.Fake
	runner  *Runner
	kube    *fake.Clientset
	edges   *edges
	events  *record.FakeRecorder
}

// edges are volumes, environment, cgroups and DNS that do nothing, or fail as told.
type edges struct {
	mu       sync.Mutex
	mountErr error
	envErr   error
	done     []string
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
func (e *edges) Refresh(context.Context, *v1.Pod) error   { e.note("refresh"); return nil }
func (e *edges) Unmount(context.Context, types.UID) error { e.note("unmount"); return nil }
func (e *edges) Mounts(context.Context, *v1.Pod, *v1.Container, []*runtimeapi.KeyValue) ([]*runtimeapi.Mount, error) {
	return nil, nil
}

func (e *edges) Resolve(_ context.Context, _ *v1.Pod, c *v1.Container, _, _ []string) ([]*runtimeapi.KeyValue, []string, []string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return nil, c.Command, c.Args, e.envErr
}
func (e *edges) Ensure(*v1.Pod) error   { return nil }
func (e *edges) Parent(*v1.Pod) string  { return "" }
func (e *edges) Remove(types.UID) error { return nil }
func (e *edges) GetPodDNS(context.Context, *v1.Pod) (*runtimeapi.DNSConfig, error) {
	return &runtimeapi.DNSConfig{}, nil
}

// onBench runs f in a bubble. The runtime has no events: the test wakes pods when it changed something.
func onBench(t *testing.T, f func(b *bench)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, runtime: critest.New("i:1"), kube: fake.NewClientset(), edges: &edges{}, events: record.NewFakeRecorder(1000)}
		client := b.runtime.Client()
		puller, err := images.NewPuller(client, b.events, nil, dir)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		writer := status.NewWriter(ctx, b.kube)
		probes := probe.New(client.Exec, b.events, func(uid types.UID) { b.runner.Wake(uid) })
		b.runner = NewRunner(ctx, Config{
			CRI: client, Images: puller, Volumes: b.edges, Env: b.edges, Cgroups: b.edges, DNS: b.edges,
			Probes: probes, Status: writer, Recorder: b.events,
			RuntimeHandler: func(*string) (string, error) { return "", nil }, HostIPs: func() []string { return []string{"192.0.2.1"} },
			RootDir: filepath.Join(dir, "root"), LogDir: filepath.Join(dir, "logs"),
		})
		defer writer.Wait()
		defer b.runner.Wait()
		defer cancel()
		defer probes.Close()
		f(b)
	})
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

// delete begins the graceful deletion of the only pod.
func (b *bench) delete() *v1.Pod {
	b.t.Helper()
	p, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metaTime(time.Now())), ptr.To(int64(30))
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

func TestAStartTakesThreeCallsThatChangeSomething(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		b.wantCalls("RunPodSandbox", "CreateContainer", "StartContainer")
		b.wantWaits(p, "running")
		time.Sleep(time.Hour)
		b.wantCalls()
	})
}

func TestInitContainersThatEndAtOnceNeedNobodyToWakeThem(t *testing.T) {
	onBench(t, func(b *bench) {
		p := onePod(v1.RestartPolicyAlways, "i j", "a")
		p = b.run(p)
		b.exit(p, "i", 0)
		b.exit(p, "j", 0)
		b.wantWaits(p, "running")
	})
}

func TestCrashesBackOffAndBeginAnew(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		b.exit(p, "a", 1)
		b.wantWaits(p, "running") // the first time it is started again at once
		for _, d := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 300 * time.Second, 300 * time.Second} {
			b.exit(p, "a", 1)
			b.wantWaits(p, fmt.Sprintf("CrashLoopBackOff: back-off %s restarting failed container=a pod=p_ns(u)", d))
			time.Sleep(d - time.Second)
			synctest.Wait()
			if b.waits(p) == "running" {
				t.Errorf("started again before %v", d)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			b.wantWaits(p, "running")
		}
		time.Sleep(11 * time.Minute)
		b.exit(p, "a", 1)
		b.wantWaits(p, "running")
	})
}

func TestOldInstancesAreRemoved(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		for range 5 {
			b.exit(p, "a", 1)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
		}
		v, _ := b.runner.View(p.UID)
		if n := len(v.Observed.ContainerStatuses); n != 2 {
			t.Errorf("%d instances are left", n)
		}
		if got := v.Pod.Status.ContainerStatuses[0]; got.RestartCount != 5 || got.LastTerminationState.Terminated == nil {
			t.Errorf("%+v", got)
		}
	})
}

func TestCallsThatFail(t *testing.T) {
	for _, tc := range []struct {
		method, waits, event string
	}{
		{"RunPodSandbox", "ContainerCreating: ", "Warning FailedCreatePodSandBox Failed to create pod sandbox: rpc error: code = Internal desc = broken"},
		{"PodSandboxStatus", "ContainerCreating: ", "Warning FailedPodSandBoxStatus Unable to get pod sandbox status: rpc error: code = Internal desc = broken"},
		{"CreateContainer", "CreateContainerError: broken", "Warning Failed Error: broken"},
		{"StartContainer", "RunContainerError: broken", "Warning Failed Error: broken"},
		{"ImageStatus", "ImageInspectError: Failed to inspect image \"\": rpc error: code = Internal desc = broken", "Warning InspectFailed"},
	} {
		t.Run(tc.method, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.runtime.Fail(tc.method, grpcstatus.Error(codes.Internal, "broken"))
				p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
				b.wantWaits(p, tc.waits)
				b.wantEvent(tc.event)
				time.Sleep(3 * time.Minute)
				b.runtime.Fail(tc.method, nil)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				b.wantWaits(p, "running")
			})
		})
	}
}

func TestAMissingConfigMap(t *testing.T) {
	onBench(t, func(b *bench) {
		b.edges.set(nil, errors.New(`configmap "x" not found`))
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		b.wantWaits(p, `CreateContainerConfigError: configmap "x" not found`)
		b.wantEvent(`Warning Failed Error: configmap "x" not found`)
		time.Sleep(time.Minute)
		b.edges.set(nil, nil)
		time.Sleep(makeAgainMost)
		synctest.Wait()
		b.wantWaits(p, "running")
	})
}

func TestAVolumeThatCannotBeMounted(t *testing.T) {
	onBench(t, func(b *bench) {
		b.edges.set(errors.New(`MountVolume.SetUp failed for volume "v" : secret "s" not found`), nil)
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		b.wantWaits(p, "ContainerCreating: ")
		b.wantEvent(`Warning FailedMount MountVolume.SetUp failed for volume "v" : secret "s" not found`)
		b.wantCalls()
		b.edges.set(nil, nil)
		b.runner.Retry(p.UID) // what was missing has come
		synctest.Wait()
		b.wantWaits(p, "running")
	})
}

func TestADeletionDoesNotWaitForAPull(t *testing.T) {
	onBench(t, func(b *bench) {
		release := b.runtime.Block("PullImage")
		defer release()
		p := onePod(v1.RestartPolicyAlways, "", "a")
		p.Spec.Containers[0].Image = "other:1"
		b.run(p)
		deleted := b.delete()
		if _, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{}); err == nil {
			t.Error("the object is still there")
		}
		b.runner.Remove(deleted)
		synctest.Wait()
		b.wantCalls("RunPodSandbox", "PullImage", "StopPodSandbox", "RemovePodSandbox")
	})
}

func TestEndsInOrder(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		b.runtime.Calls()
		deleted := b.delete()
		b.wantCalls("StopContainer", "StopPodSandbox")
		if got := b.edges.done[len(b.edges.done)-1]; got != "unmount" {
			t.Errorf("last %q", got)
		}
		v, _ := b.runner.View(p.UID)
		if v.Pod.Status.Phase != v1.PodFailed || v.Pod.Status.PodIP == "" {
			t.Errorf("final status %+v", v.Pod.Status)
		}
		b.runner.Remove(deleted)
		synctest.Wait()
		b.wantCalls("RemoveContainer", "RemovePodSandbox")
		if _, ok := b.runner.View(p.UID); ok {
			t.Error("the pod is still known")
		}
	})
}

func TestAPodThatEndsByItself(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(onePod(v1.RestartPolicyNever, "s*", "a"))
		b.runtime.Calls()
		b.exit(p, "a", 0)
		b.wantCalls("StopContainer", "StopPodSandbox") // the sidecar
		got, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{})
		if err != nil || got.Status.Phase != v1.PodSucceeded {
			t.Errorf("phase %s, %v", got.Status.Phase, err)
		}
	})
}

func TestTheActiveDeadline(t *testing.T) {
	onBench(t, func(b *bench) {
		p := onePod(v1.RestartPolicyAlways, "", "a")
		p.Spec.ActiveDeadlineSeconds = ptr.To(int64(30))
		p = b.run(p)
		time.Sleep(29 * time.Second)
		synctest.Wait()
		b.wantWaits(p, "running")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		v, _ := b.runner.View(p.UID)
		if s := v.Pod.Status; s.Phase != v1.PodFailed || s.Reason != "DeadlineExceeded" {
			t.Errorf("%s %s", s.Phase, s.Reason)
		}
		b.wantEvent("Normal DeadlineExceeded Pod was active on the node longer than the specified deadline")
	})
}

func TestALostSandboxIsReplaced(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(onePod(v1.RestartPolicyAlways, "", "a"))
		v, _ := b.runner.View(p.UID)
		b.runtime.Calls()
		b.runtime.Exit("a", 137)
		if _, err := b.runtime.StopPodSandbox(b.t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: v.Observed.SandboxStatuses[0].Id}); err != nil {
			t.Fatal(err)
		}
		b.runner.Wake(p.UID)
		synctest.Wait()
		b.wantCalls("RunPodSandbox", "CreateContainer", "StartContainer")
		b.wantWaits(p, "running")
		b.wantEvent("Normal SandboxChanged Pod sandbox changed, it will be killed and re-created.")
	})
}

func TestARestartedKubeletChangesNothing(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(onePod(v1.RestartPolicyAlways, "i s*", "a"))
		b.exit(p, "i", 0)
		b.wantWaits(p, "running")
		b.runtime.Calls()
		now, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		writes := len(b.kube.Actions())
		ctx, cancel := context.WithCancel(b.t.Context())
		second := NewRunner(ctx, b.runner.Config)
		second.Apply(now)
		synctest.Wait()
		time.Sleep(time.Hour)
		synctest.Wait()
		b.wantCalls()
		if n := len(b.kube.Actions()); n != writes {
			t.Errorf("it wrote %v", b.kube.Actions()[writes:])
		}
		cancel()
		second.Wait()
	})
}

func TestRemoveUnknownUsesWhatContainersRemember(t *testing.T) {
	onBench(t, func(b *bench) {
		p := onePod(v1.RestartPolicyAlways, "", "a")
		b.run(p)
		left, err := b.runner.CRI.LabelledPods(b.t.Context())
		if err != nil || len(left) != 1 {
			t.Fatalf("%v, %v", left, err)
		}
		b.runtime.Calls()
		ctx, cancel := context.WithCancel(b.t.Context())
		second := NewRunner(ctx, b.runner.Config)
		second.RemoveUnknown(left[0])
		synctest.Wait()
		b.wantCalls("StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox")
		cancel()
		second.Wait()
	})
}

func TestARejectedPodRunsNothing(t *testing.T) {
	onBench(t, func(b *bench) {
		p := onePod(v1.RestartPolicyAlways, "", "a")
		p, err := b.kube.CoreV1().Pods("ns").Create(b.t.Context(), p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.runner.Status.Object(p.UID, p)
		b.runner.Reject(p, "OutOfcpu", "too much")
		synctest.Wait()
		b.wantCalls()
		got, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{})
		if err != nil || got.Status.Phase != v1.PodFailed || got.Status.Reason != "OutOfcpu" || len(got.Status.ContainerStatuses) != 0 {
			t.Errorf("%+v, %v", got.Status, err)
		}
	})
}
