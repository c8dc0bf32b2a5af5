package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/internal/podtest"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

func TestAStartTakesThreeCallsThatChangeSomething(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.wantCalls("RunPodSandbox", "CreateContainer", "StartContainer")
		b.wantWaits(p, "running")
		time.Sleep(time.Hour)
		b.wantCalls()
	})
}

// The runtime has no events here, and the test wakes no pod.
func TestALostEventIsMadeUpFor(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.runtime.Calls()
		b.runtime.Exit("a", 1)
		time.Sleep(lookAgain - time.Second)
		b.wantCalls()
		time.Sleep(lookSpread + 2*time.Second)
		synctest.Wait()
		b.wantCalls("CreateContainer", "StartContainer")
		if v, _ := b.runner.View(p.UID); v.Pod.Status.ContainerStatuses[0].RestartCount != 1 {
			t.Errorf("%+v", v.Pod.Status.ContainerStatuses[0])
		}
	})
}

// One call is never answered; those that follow are.
func TestACallThatHangsIsGivenUp(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.runtime.Block("ContainerStatus")
		b.runtime.Exit("a", 1)
		b.runner.Wake(p.UID)
		synctest.Wait()
		b.runtime.Block("ContainerStatus")() // for later calls only
		time.Sleep(callTimeout - time.Second)
		b.wantWaits(p, "running") // as it was seen last
		time.Sleep(2*time.Second + retryMost)
		synctest.Wait()
		if v, _ := b.runner.View(p.UID); v.Pod.Status.ContainerStatuses[0].RestartCount != 1 {
			t.Errorf("%+v", v.Pod.Status.ContainerStatuses[0])
		}
	})
}

func TestInitContainersThatEndAtOnceNeedNoWakeUp(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyAlways, "i j", "a")
		p = b.run(p)
		b.exit(p, "i", 0)
		b.exit(p, "j", 0)
		b.wantWaits(p, "running")
	})
}

func TestCrashesBackOffAndBeginAnew(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.exit(p, "a", 1)
		b.wantWaits(p, "running") // the first time it is started again at once
		for _, d := range []time.Duration{
			10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second,
			300 * time.Second, 300 * time.Second,
		} {
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
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
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
		{
			"RunPodSandbox", "ContainerCreating: ",
			"Warning FailedCreatePodSandBox Failed to create pod sandbox: rpc error: code = Internal desc = broken",
		},
		{
			"PodSandboxStatus", "ContainerCreating: ",
			"Warning FailedPodSandBoxStatus Unable to get pod sandbox status: rpc error: code = Internal desc = broken",
		},
		{"CreateContainer", "CreateContainerError: broken", "Warning Failed Error: broken"},
		{"StartContainer", "RunContainerError: broken", "Warning Failed Error: broken"},
		{"ImageStatus", "ImageInspectError: Failed to inspect image \"\": rpc error: code = Internal desc = broken", "Warning InspectFailed"},
	} {
		t.Run(tc.method, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.runtime.Fail(tc.method, grpcstatus.Error(codes.Internal, "broken"))
				p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
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

// withImages is a pod that mounts an image alongside a directory.
func withImages(reference string, policy v1.PullPolicy) *v1.Pod {
	p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
	p.Spec.Volumes = []v1.Volume{
		{Name: "dir", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: reference, PullPolicy: policy}}},
	}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "dir", MountPath: "/dir"}, {Name: "image", MountPath: "/image"}}
	return p
}

func TestAnImageVolumeIsMountedByItsID(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(withImages("i:1", v1.PullAlways))
		b.wantWaits(p, "running")
		b.wantCalls("RunPodSandbox", "PullImage", "CreateContainer", "StartContainer")
		v, _ := b.runner.View(p.UID)
		resp, err := b.runtime.ContainerStatus(t.Context(),
			&runtimeapi.ContainerStatusRequest{ContainerId: v.Observed.ContainerStatuses[0].ID.ID})
		if err != nil {
			t.Fatal(err)
		}
		m := resp.Status.Mounts
		if m[0].Image != nil || m[1].Image.GetImage() != "i:1" || m[1].Image.GetUserSpecifiedImage() != "i:1" || m[1].ContainerPath != "/image" {
			t.Errorf("mounts %v", m)
		}
	})
}

func TestAnImageVolumeThatIsNotThere(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(withImages("other:1", v1.PullNever))
		b.wantWaits(p, `ErrImageNeverPull: Container image "other:1" is not present with pull policy of Never`)
		b.wantCalls("RunPodSandbox")
	})
}

func TestARuntimeThatMountsNoImages(t *testing.T) {
	const why = `image volumes are not supported (mount "/image")`
	onBench(t, func(b *bench) {
		b.runtime.Fail("CreateContainer", grpcstatus.Error(codes.Unimplemented, why))
		p := b.run(withImages("i:1", v1.PullIfNotPresent))
		b.wantWaits(p, "CreateContainerError: "+why)
		b.wantEvent("Warning Failed Error: " + why)
	})
}

func TestAMissingConfigMap(t *testing.T) {
	onBench(t, func(b *bench) {
		b.edges.set(nil, errors.New(`configmap "x" not found`))
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.wantWaits(p, `CreateContainerConfigError: configmap "x" not found`)
		b.wantEvent(`Warning Failed Error: configmap "x" not found`)
		time.Sleep(time.Minute)
		b.edges.set(nil, nil)
		time.Sleep(makeAgainMost)
		synctest.Wait()
		b.wantWaits(p, "running")
	})
}

// A container never runs without the devices that it asks for.
func TestDevicesThatAreNotPrepared(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("claim")}}
		p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
		b.run(p)
		const why = `this kubelet does not prepare devices of ResourceClaims ("gpu"): remove resources.claims from the container, or run the pod on a node whose kubelet does`
		b.wantWaits(p, "CreateContainerConfigError: "+why)
		b.wantEvent("Warning Failed Error: " + why)
	})
}

// The same holds for devices that the scheduler has chosen for an extended resource.
func TestDevicesOfAnExtendedResource(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
			ResourceClaimName: "claim",
			RequestMappings: []v1.ContainerExtendedResourceRequest{
				{ContainerName: p.Spec.Containers[0].Name, ResourceName: "example.org/gpu", RequestName: "container-0-request-0"},
			},
		}
		b.run(p)
		const why = `this kubelet does not prepare devices of ResourceClaims, which the scheduler has chosen for "example.org/gpu": remove it from the container's requests, or run the pod on a node whose kubelet does`
		b.wantWaits(p, "CreateContainerConfigError: "+why)
		b.wantEvent("Warning Failed Error: " + why)
	})
}

func TestAVolumeThatCannotBeMounted(t *testing.T) {
	onBench(t, func(b *bench) {
		b.edges.set(errors.New(`MountVolume.SetUp failed for volume "v" : secret "s" not found`), nil)
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.wantWaits(p, "ContainerCreating: ")
		b.wantEvent(`Warning FailedMount MountVolume.SetUp failed for volume "v" : secret "s" not found`)
		b.wantCalls()
		b.edges.set(nil, nil)
		b.runner.Retry(p.UID) // what was missing has come
		synctest.Wait()
		b.wantWaits(p, "running")
	})
}

// Regression: such a pod was not looked after any more until the object came back.
func TestARunningPodWithoutAnObjectOfItsVolumesIsLookedAfter(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.edges.set(errors.New(`MountVolume.SetUp failed for volume "v" : configmap "c" not found`), nil)
		b.runtime.Calls()
		b.changeSpec(func(p *v1.Pod) { p.Labels = map[string]string{"new": "label"} })
		b.exit(p, "a", 1)
		b.wantCalls("CreateContainer", "StartContainer")
		b.wantWaits(p, "running")
		refreshed := 0
		b.edges.mu.Lock()
		defer b.edges.mu.Unlock()
		for _, what := range b.edges.done {
			if what == "refresh" {
				refreshed++
			}
		}
		if refreshed != 1 {
			t.Errorf("refreshed %d times, want once: the volumes try again by themselves", refreshed)
		}
	})
}

func TestADeletionDoesNotWaitForAPull(t *testing.T) {
	onBench(t, func(b *bench) {
		release := b.runtime.Block("PullImage")
		defer release()
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Spec.Containers[0].Image = "other:1"
		b.run(p)
		deleted := b.delete()
		if _, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{}); err == nil {
			t.Error("the object is still there")
		}
		b.runner.Remove(deleted)
		synctest.Wait()
		b.wantCalls("RunPodSandbox", "PullImage", "StopPodSandbox", "RemovePodSandbox")
		for len(b.events.Events) > 0 {
			if e := <-b.events.Events; strings.Contains(e, "canceled") {
				t.Errorf("event %q", e)
			}
		}
	})
}

// The volumes of a pod whose sandbox cannot be stopped are free for its successor once its
// containers have ended, and not before.
func TestASandboxThatCannotBeStoppedKeepsNoVolumes(t *testing.T) {
	for method, want := range map[string]bool{"StopPodSandbox": true, "StopContainer": false} {
		t.Run(method, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
				b.runtime.Fail(method, errors.New("no"))
				b.delete()
				b.edges.mu.Lock()
				defer b.edges.mu.Unlock()
				if slices.Contains(b.edges.done, "stopped") != want || slices.Contains(b.edges.done, "unmount") {
					t.Errorf("done %q", b.edges.done)
				}
			})
		})
	}
}

// Regression: a stop that failed woke the goroutine of the pod, which tried again without a pause.
func TestAFailedStopIsNotTriedAgainAtOnce(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.runtime.Fail("StopContainer", errors.New("no"))
		before := len(b.events.Events)
		b.delete()
		if n := len(b.events.Events) - before; n != 2 {
			t.Errorf("%d events, want Killing and FailedKillPod", n)
		}
	})
}

// Regression: each wake, such as for an event of another container, brought another attempt about,
// which ran preStop hooks again.
func TestAnEndThatFailsWaitsForItsBackOff(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.runtime.Calls()
		b.runtime.Fail("StopContainer", errors.New("no"))
		attempt := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := b.runtime.Calls(); !slices.Equal(got, want) {
				t.Errorf("%s: calls %v, want %v", what, got, want)
			}
		}
		p := b.delete()
		attempt("the deletion", "StopContainer")
		b.runner.Wake(p.UID)
		attempt("a wake")
		changed := p.DeepCopy()
		changed.Labels = map[string]string{"a": "b"}
		b.runner.Apply(changed)
		attempt("a label")
		shorter := changed.DeepCopy()
		*shorter.DeletionGracePeriodSeconds = 5
		b.runner.Apply(shorter)
		attempt("a shorter grace", "StopContainer")
		b.runner.Evict(p.UID, status.Eviction{Reason: "Evicted"})
		attempt("an eviction", "StopContainer")
		b.runner.Retry(p.UID)
		attempt("a retry", "StopContainer")
		b.runner.Remove(shorter)
		attempt("the removal", "StopContainer")
		b.runner.WakeAll()
		attempt("another wake")
		time.Sleep(16 * time.Second) // after five attempts
		attempt("the end of the back-off", "StopContainer")
		b.runtime.Fail("StopContainer", nil)
		b.runtime.Fail("RemovePodSandbox", errors.New("no"))
		time.Sleep(32 * time.Second)
		attempt("success", "StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox")
		b.runner.Wake(p.UID)
		attempt("a wake after a clean-up that failed")
		b.runtime.Fail("RemovePodSandbox", nil)
		time.Sleep(time.Second)
		attempt("the end", "RemovePodSandbox")
	})
}

// Regression: the back-off of a start that failed went on in the pod's end.
func TestTheEndDoesNotWaitForTheBackOffOfTheStart(t *testing.T) {
	onBench(t, func(b *bench) {
		b.runtime.Fail("RunPodSandbox", grpcstatus.Error(codes.Internal, "broken"))
		b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		b.edges.mu.Lock()
		b.edges.cgroupErr = errors.New("busy")
		b.edges.mu.Unlock()
		b.delete()
		b.edges.mu.Lock()
		b.edges.cgroupErr = nil
		b.edges.mu.Unlock()
		time.Sleep(retryFirst)
		synctest.Wait()
		if _, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{}); err == nil {
			t.Error("the object is still there")
		}
	})
}

func TestEndsInOrder(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.runtime.Calls()
		deleted := b.delete()
		b.wantCalls("StopContainer", "StopPodSandbox")
		if got := b.edges.done[len(b.edges.done)-1]; got != "remove cgroup" {
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

// Regression: the ids of a static pod whose file came back while it ended were freed after it had
// started again, and another pod could get the same.
func TestAPodThatComesBackKeepsTheIdsOfItsNewRun(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		release := b.runtime.Block("StopContainer")
		b.runner.Remove(p)
		synctest.Wait()
		b.runner.Apply(p)
		release()
		synctest.Wait()
		b.wantWaits(p, "running")
		b.edges.mu.Lock()
		defer b.edges.mu.Unlock()
		freed := slices.Index(b.edges.done, "release ids")
		if freed < 0 || !slices.Contains(b.edges.done[freed:], "mount") {
			t.Errorf("done %q", b.edges.done)
		}
	})
}

// Regression: while containers had their grace, nothing was reported of their pod. It stayed ready,
// and Services sent it traffic.
func TestAPodIsNotReadyForLongerThanItsProbeSays(t *testing.T) {
	for name, stop := range map[string]func(*bench){
		"the pod ends":         func(b *bench) { b.delete() },
		"a container restarts": func(b *bench) { b.resize("100m", "128Mi") },
	} {
		t.Run(name, func(t *testing.T) { readyAsProbed(t, stop) })
	}
}

// readyAsProbed has a container stop, and its pod become unready and ready meanwhile.
func readyAsProbed(t *testing.T, stop func(*bench)) {
	onBench(t, func(b *bench) {
		p := sized("100m", "64Mi")
		p.Spec.TerminationGracePeriodSeconds = new(int64(30))
		c := &p.Spec.Containers[0]
		c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 25}}}
		c.ReadinessProbe = &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"ready"}}},
			PeriodSeconds: 5, SuccessThreshold: 1, FailureThreshold: 2,
		}
		p = b.run(p)
		b.runtime.Calls()
		stop(b)
		ready := func() bool {
			t.Helper()
			p, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), p.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return podutil.IsPodReady(p) && p.Status.ContainerStatuses[0].Ready
		}
		if !ready() {
			t.Fatal("it is not ready")
		}
		b.unready.Store(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if ready() {
			t.Error("it is still ready")
		}
		b.unready.Store(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if !ready() {
			t.Error("it is not ready again")
		}
		b.wantCalls() // the hook still runs
		time.Sleep(time.Minute)
		synctest.Wait() // a container that starts again is probed before the bench's probes end
	})
}

// Regression: a kubelet that was to end waited for the grace of pods that end, up to hours, and in
// a cluster of one the API was away for that long.
func TestTheKubeletEndsBeforeAPodThatEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		edit  func(*v1.Pod)
		calls []string
	}{
		"in its hook": {edit: func(p *v1.Pod) {
			p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 25}}}
		}},
		"in its grace": {edit: func(*v1.Pod) {}, calls: []string{"StopContainer"}},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
				tc.edit(p)
				b.run(p)
				b.runtime.Calls()
				defer b.runtime.Block("StopContainer")()
				b.delete()
				b.wantCalls(tc.calls...)
				began := time.Now()
				b.end()
				b.runner.Wait()
				if took := time.Since(began); took > time.Second {
					t.Errorf("it ended after %v", took)
				}
				b.wantCalls() // the hook is not cut short
			})
		})
	}
}

// probed is a pod with a readiness probe, which fails ten seconds after it does not work any more.
func probed() *v1.Pod {
	p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
	p.Spec.Containers[0].ReadinessProbe = &v1.Probe{
		ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"ready"}}},
		PeriodSeconds: 5, SuccessThreshold: 1, FailureThreshold: 2,
	}
	return p
}

// wantReady compares whether the only pod is ready, as the API has it.
func (b *bench) wantReady(want bool) {
	b.t.Helper()
	synctest.Wait()
	if p := b.get(); podutil.IsPodReady(p) != want {
		b.t.Errorf("ready: %t, want %t", !want, want)
	}
}

// Regression: while an image was pulled for one container, nothing was reported of the others. The
// pod stayed ready, and Services sent it traffic.
func TestAPullHidesNoProbe(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(probed())
		b.wantReady(true)
		release := b.runtime.Block("PullImage")
		b.changeSpec(func(p *v1.Pod) {
			p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
				Name: "e", Image: "other:1", ImagePullPolicy: v1.PullIfNotPresent,
			}}}
		})
		b.wantInCalls("PullImage")
		b.unready.Store(true)
		time.Sleep(11 * time.Second)
		b.wantReady(false)
		b.unready.Store(false)
		time.Sleep(6 * time.Second)
		b.wantReady(true)
		release()
		synctest.Wait()
		b.wantInCalls("StartContainer")
	})
}

// Regression: a pod whose container was replaced by one of another image was not ready for some
// milliseconds, if the runtime told of the end before the image was found.
func TestAReplacedContainerIsNotReportedAsEnded(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.wantReady(true)
		release := b.runtime.Block("PullImage")
		b.changeSpec(func(p *v1.Pod) { p.Spec.Containers[0].Image = "other:1" })
		b.wantInCalls("PullImage")
		b.runner.Wake(p.UID) // as the runtime's event does
		b.wantReady(true)
		time.Sleep(moment)
		b.wantReady(false) // a pull that takes longer is no secret
		release()
		b.wantReady(true)
		b.wantInCalls("StartContainer")
	})
}

// Regression: the same, between the starts of containers that were replaced together.
func TestContainersThatAreReplacedTogetherAreNotReportedAsEnded(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a b"))
		b.changeSpec(func(p *v1.Pod) { p.Spec.Containers[0].Image = "other:1" })
		b.wantReady(true)
		b.runtime.Calls()
		release := b.runtime.Block("PullImage")
		b.changeSpec(func(p *v1.Pod) { p.Spec.Containers[0].Image, p.Spec.Containers[1].Image = "i:1", "other:2" })
		b.wantCalls("StopContainer", "StopContainer", "CreateContainer", "StartContainer", "PullImage")
		b.wantReady(true)
		time.Sleep(moment)
		b.wantReady(false)
		if s := b.get().Status.ContainerStatuses; s[0].State.Running == nil || s[1].State.Running != nil {
			t.Errorf("while the second is pulled: %+v", s)
		}
		release()
		b.wantReady(true)
	})
}

// Regression: a container was reported as running, and its pod as ready, while its postStart hook
// ran.
func TestNoPodIsReadyBeforeItsHookHasEnded(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"begin"}}}}
		release := b.runtime.Block("ExecSync")
		b.run(p)
		b.wantInCalls("StartContainer")
		b.runner.Wake(p.UID)
		time.Sleep(moment)
		b.wantReady(false)
		for _, s := range b.get().Status.ContainerStatuses {
			if s.State.Running != nil {
				t.Errorf("while the hook runs: %+v", s)
			}
		}
		release()
		b.wantReady(true)
	})
}

// Regression: the same while a step that had failed waited for its next attempt, up to a minute.
func TestAFailedStepHidesNoProbe(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(probed())
		b.wantReady(true)
		b.edges.set(errors.New(`MountVolume.SetUp failed for volume "v" : configmap "c" not found`), nil)
		ctx, cancel := context.WithCancel(b.t.Context())
		config := b.runner.Config
		config.Probes = probe.New(b.exec, b.events, func(uid types.UID) { b.runner.Wake(uid) })
		defer config.Probes.Close()
		first := b.runner
		b.runner = NewRunner(ctx, config) // after a restart of the kubelet
		defer func() {
			cancel()
			b.runner.Wait()
			b.runner = first
		}()
		b.runner.Apply(b.get())
		time.Sleep(40 * time.Second) // its attempts are rare by now
		b.wantReady(true)
		b.unready.Store(true)
		time.Sleep(11 * time.Second)
		b.wantReady(false)
		b.wantWaits(p, "running")
	})
}

// Regression: the active deadline of a pod that could not be started was up to a minute late.
func TestTheActiveDeadlineOfAPodThatFails(t *testing.T) {
	onBench(t, func(b *bench) {
		b.edges.set(errors.New(`MountVolume.SetUp failed for volume "v" : configmap "c" not found`), nil)
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Spec.ActiveDeadlineSeconds = ptr.To(int64(35)) // between two attempts
		b.run(p)
		time.Sleep(36 * time.Second)
		synctest.Wait()
		if s := b.get().Status; s.Phase != v1.PodFailed || s.Reason != "DeadlineExceeded" {
			t.Errorf("%s %s", s.Phase, s.Reason)
		}
	})
}

// What runs in a cgroup that cannot be removed takes what the pod was given.
func TestAPodHasNotEndedBeforeItsCgroupIsGone(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		b.edges.mu.Lock()
		b.edges.cgroupErr = errors.New("remove cgroup /x: device or resource busy")
		b.edges.mu.Unlock()
		b.delete()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if p := b.get(); p.Status.Phase != v1.PodFailed {
			t.Errorf("phase %s though all containers have ended", p.Status.Phase)
		}
		b.wantEvent("Warning FailedKillPod error killing pod: remove cgroup /x: device or resource busy")
		b.edges.mu.Lock()
		b.edges.cgroupErr = nil
		b.edges.done = nil
		b.edges.mu.Unlock()
		time.Sleep(retryMost)
		synctest.Wait()
		if !slices.Contains(b.edges.done, "remove cgroup") {
			t.Error("removing the cgroup was not tried again")
		}
		if _, err := b.kube.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err == nil {
			t.Error("the object is still there")
		}
	})
}

func TestAPodThatEndsByItself(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyNever, "s*", "a"))
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
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
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
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		v, _ := b.runner.View(p.UID)
		b.runtime.Calls()
		b.runtime.Exit("a", 137)
		if _, err := b.runtime.StopPodSandbox(b.t.Context(),
			&runtimeapi.StopPodSandboxRequest{PodSandboxId: v.Observed.SandboxStatuses[0].Id}); err != nil {
			t.Fatal(err)
		}
		b.runner.Wake(p.UID)
		synctest.Wait()
		b.wantCalls("RunPodSandbox", "CreateContainer", "StartContainer")
		b.wantWaits(p, "running")
		b.wantEvent("Normal SandboxChanged Pod sandbox changed, it will be killed and re-created.")
	})
}

// Regression: a pod whose sandbox was lost waited for ever for the removal of an old init
// container, and could not even be deleted.
func TestARemovalThatHangsIsGivenUp(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "i", "a"))
		b.exit(p, "i", 0)
		b.wantWaits(p, "running")
		v, _ := b.runner.View(p.UID)
		b.runtime.Block("RemoveContainer")
		b.runtime.Exit("a", 137)
		if _, err := b.runtime.StopPodSandbox(b.t.Context(),
			&runtimeapi.StopPodSandboxRequest{PodSandboxId: v.Observed.SandboxStatuses[0].Id}); err != nil {
			t.Fatal(err)
		}
		b.runner.Wake(p.UID)
		synctest.Wait()
		b.runtime.Block("RemoveContainer")() // for later calls only
		time.Sleep(callTimeout + retryMost)
		synctest.Wait()
		b.exit(p, "i", 0)
		b.wantWaits(p, "running")
	})
}

func TestAStartThatFailedForItsSandboxIsNotHeldBack(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "", "a"))
		v, _ := b.runner.View(p.UID)
		b.runtime.Calls()
		b.runtime.Fail("StartContainer", grpcstatus.Error(codes.Unknown, "no such process"))
		b.exit(p, "a", 137) // its sandbox's end has begun, and is not seen yet
		b.wantCalls("CreateContainer", "StartContainer")
		b.runtime.Fail("StartContainer", nil)
		if _, err := b.runtime.StopPodSandbox(b.t.Context(),
			&runtimeapi.StopPodSandboxRequest{PodSandboxId: v.Observed.SandboxStatuses[0].Id}); err != nil {
			t.Fatal(err)
		}
		b.runner.Wake(p.UID)
		synctest.Wait()
		time.Sleep(100 * time.Millisecond) // sooner than any back-off ends
		synctest.Wait()
		b.wantCalls("RunPodSandbox", "CreateContainer", "StartContainer", "RemoveContainer") // the first instance
		b.wantWaits(p, "running")
	})
}

func TestARestartedKubeletChangesNothing(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(podtest.Pod(v1.RestartPolicyAlways, "i s*", "a"))
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
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
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

func TestAPodKnownFromDiskOnlyTakesItsLogsAlong(t *testing.T) {
	onBench(t, func(b *bench) {
		b.runner.Logs.Legacy = filepath.Join(b.runner.Logs.All, "..", "links")
		mine, others := filepath.Join(b.runner.Logs.All, "ns_p_u"), filepath.Join(b.runner.Logs.All, "ns_p_other-u")
		link := func(of string) string { return filepath.Join(b.runner.Logs.Legacy, "p_ns_a-"+of+".log") }
		for _, err := range []error{
			os.MkdirAll(filepath.Join(mine, "a"), 0o700), os.MkdirAll(filepath.Join(others, "a"), 0o700), os.MkdirAll(b.runner.Logs.Legacy, 0o700),
			os.MkdirAll(criconfig.Dir(b.runner.RootDir, "u"), 0o700), os.Symlink(filepath.Join(mine, "a/0.log"), link("1")),
			os.Symlink(filepath.Join(others, "a/0.log"), link("2")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		p := &v1.Pod{}
		p.UID = "u"
		b.runner.RemoveUnknown(p)
		synctest.Wait()
		for path, stays := range map[string]bool{
			mine: false, others: true, link("1"): false, link("2"): true, criconfig.Dir(b.runner.RootDir, "u"): false,
		} {
			if _, err := os.Lstat(path); (err == nil) != stays {
				t.Errorf("%s: %v, want it there: %t", path, err, stays)
			}
		}
	})
}

func TestARejectedPodRunsNothing(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
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
