package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/internal/podtest"
)

// sized is a pod of one container with requests and limits of these amounts of CPU and memory.
func sized(cpu, memory string) *v1.Pod {
	p := podtest.Pod(v1.RestartPolicyNever, "", "a")
	p.Generation = 1
	give(p, cpu, memory)
	return p
}

func give(p *v1.Pod, cpu, memory string) {
	p.Spec.Containers[0].Resources = both(cpu, memory)
}

// both are requests and limits of the same amounts.
func both(cpu, memory string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: amounts(cpu, memory), Limits: amounts(cpu, memory)}
}

// get returns the only pod as the API has it.
func (b *bench) get() *v1.Pod {
	b.t.Helper()
	p, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// resize changes the requests and limits of the only pod.
func (b *bench) resize(cpu, memory string) *v1.Pod {
	b.t.Helper()
	return b.changeSpec(func(p *v1.Pod) { give(p, cpu, memory) })
}

// changeSpec changes the spec of the only pod, as the API's subresource resize does.
func (b *bench) changeSpec(change func(*v1.Pod)) *v1.Pod {
	b.t.Helper()
	p := b.get()
	p.Generation++
	change(p)
	p, err := b.kube.CoreV1().Pods("ns").Update(b.t.Context(), p, metav1.UpdateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.runner.Status.Object(p.UID, p)
	b.runner.Apply(p)
	synctest.Wait()
	return p
}

// wantGiven compares what the status says of the container with amounts of CPU and memory, and its
// conditions with "TYPE REASON: MESSAGE", one per resize that is not over.
func (b *bench) wantGiven(cpu, memory string, conditions ...string) {
	b.t.Helper()
	p := b.get()
	c := p.Status.ContainerStatuses[0]
	b.wantAmounts(c.AllocatedResources, c.Resources, cpu, memory)
	var got []string
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			got = append(got, string(c.Type)+" "+c.Reason+": "+c.Message)
			if c.Status != v1.ConditionTrue || c.ObservedGeneration != p.Generation || c.LastTransitionTime.IsZero() {
				b.t.Errorf("%+v", c)
			}
		}
	}
	if strings.Join(got, "\n") != strings.Join(conditions, "\n") {
		b.t.Errorf("conditions %q, want %q", got, conditions)
	}
	if p.Status.ObservedGeneration != p.Generation {
		b.t.Errorf("observed generation %d of %d", p.Status.ObservedGeneration, p.Generation)
	}
}

// wantAmounts compares what a status says that a pod or a container has.
func (b *bench) wantAmounts(allocated v1.ResourceList, has *v1.ResourceRequirements, cpu, memory string) {
	b.t.Helper()
	for name, list := range map[string]v1.ResourceList{"allocated": allocated, "requests": has.Requests, "limits": has.Limits} {
		if list.Cpu().String() != cpu || list.Memory().String() != memory {
			b.t.Errorf("%s: %s and %s, want %s and %s", name, list.Cpu(), list.Memory(), cpu, memory)
		}
	}
}

func TestAResizeThatFits(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(sized("100m", "64Mi"))
		b.runtime.Calls()
		b.wantGiven("100m", "64Mi")
		b.resize("200m", "128Mi")
		b.wantCalls("UpdateContainerResources")
		b.wantGiven("200m", "128Mi")
		b.wantEvent(`Normal ResizeStarted Pod resize started: {"containers":[{"name":"a","resources":{"limits":{"cpu":"200m","memory":"128Mi"},"requests":{"cpu":"200m","memory":"128Mi"}}}],"generation":2}`)
		b.wantEvent(`Normal ResizeCompleted Pod resize completed: `)
	})
}

func TestAResizeThatDoesNotFitIsDeferred(t *testing.T) {
	const why = "Node didn't have enough resource: cpu, requested: 200, used: 1900, capacity: 2000"
	pending := "PodResizePending Deferred: " + why
	onBench(t, func(b *bench) {
		p := b.run(sized("100m", "64Mi"))
		b.runtime.Calls()
		b.full.Store(new(why))
		b.resize("200m", "128Mi")
		b.wantCalls()
		b.wantGiven("100m", "64Mi", pending)
		b.wantEvent("Warning ResizeDeferred Pod resize Deferred: ")
		if v, _ := b.runner.View(p.UID); v.Pod.Spec.Containers[0].Resources.Requests.Cpu().String() != "100m" {
			t.Errorf("others are told that it has %v", v.Pod.Spec.Containers[0].Resources)
		}

		// Another process of the kubelet goes on waiting, and gives it nothing else meanwhile.
		ctx, cancel := context.WithCancel(b.t.Context())
		second := NewRunner(ctx, b.runner.Config)
		second.Apply(b.get())
		synctest.Wait()
		b.wantCalls()
		b.wantGiven("100m", "64Mi", pending)
		cancel()
		second.Wait()

		b.full.Store(nil)
		b.runner.Wake(p.UID)
		synctest.Wait()
		b.wantCalls("UpdateContainerResources")
		b.wantGiven("200m", "128Mi")
	})
}

func TestADeferredResizeThatIsTakenBack(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(sized("100m", "64Mi"))
		b.runtime.Calls()
		b.full.Store(new("full"))
		b.resize("200m", "128Mi")
		b.resize("100m", "64Mi")
		b.wantCalls()
		b.wantGiven("100m", "64Mi")
	})
}

func TestAContainerThatEndsWhileAResizeIsDeferredStartsAsItWas(t *testing.T) {
	onBench(t, func(b *bench) {
		p := sized("100m", "64Mi")
		p.Spec.RestartPolicy = v1.RestartPolicyAlways
		b.run(p)
		b.full.Store(new("full"))
		b.resize("200m", "128Mi")
		b.exit(p, "a", 1)
		b.wantWaits(p, "running")
		b.wantGiven("100m", "64Mi", "PodResizePending Deferred: full")
	})
}

func TestAResizePolicyStartsTheContainerAnew(t *testing.T) {
	for name, tc := range map[string]struct {
		cpu, memory string
		calls       []string
	}{
		"what wants a restart": {"100m", "128Mi", []string{"StopContainer", "CreateContainer", "StartContainer"}},
		"what does not":        {"200m", "64Mi", []string{"UpdateContainerResources"}},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				p := sized("100m", "64Mi")
				p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
					{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired}, {ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer},
				}
				b.run(p)
				b.runtime.Calls()
				b.resize(tc.cpu, tc.memory)
				b.wantCalls(tc.calls...)
				b.wantGiven(tc.cpu, tc.memory)
				if len(tc.calls) > 1 {
					b.wantEvent("Normal Killing Container a resize requires restart")
				}
			})
		})
	}
}

// Regression: a process that was killed while a container ran its preStop hook, to start again with
// other resources, was followed by one that changed the container as it ran.
func TestAResizePolicyHoldsAfterARestart(t *testing.T) {
	onBench(t, func(b *bench) {
		p := sized("100m", "64Mi")
		c := &p.Spec.Containers[0]
		c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 5}}}
		b.run(p)
		b.resize("100m", "128Mi")
		if memory := b.get().Status.ContainerStatuses[0].AllocatedResources.Memory().String(); memory != "128Mi" || !resizeUnderway(b.get()) {
			t.Fatalf("allocated %s, conditions %+v", memory, b.get().Status.Conditions)
		}
		if p := b.afterRestart(); p.Spec.Containers[0].Resources.Limits.Memory().String() != "128Mi" {
			t.Errorf("given %v", p.Spec.Containers[0].Resources)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		b.wantCalls("StopContainer", "CreateContainer", "StartContainer")
		b.wantGiven("100m", "128Mi")
	})
}

func TestAResizeThatTheRuntimeRefusesIsTriedAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(sized("100m", "64Mi"))
		b.runtime.Calls()
		b.runtime.Fail("UpdateContainerResources", grpcstatus.Error(codes.Internal, "broken"))
		b.resize("200m", "64Mi")
		p := b.get()
		_, c := podutil.GetPodCondition(&p.Status, v1.PodResizeInProgress)
		if c == nil || c.Reason != "Error" || c.Message != "resize container a: broken" {
			t.Fatalf("condition %+v", c)
		}
		b.wantEvent("Normal ResizeStarted")
		b.wantEvent("Warning ResizeError Pod resize error: ")
		b.runtime.Fail("UpdateContainerResources", nil)
		time.Sleep(retryMost)
		synctest.Wait()
		b.wantGiven("200m", "64Mi")
	})
}

func TestMemoryInUseIsNotTakenAway(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(sized("100m", "64Mi"))
		b.runtime.Use("a", 48<<20, 0, 0)
		b.runtime.Calls()
		b.resize("100m", "32Mi")
		b.wantCalls("ContainerStats")
		p := b.get()
		_, c := podutil.GetPodCondition(&p.Status, v1.PodResizeInProgress)
		const want = `cannot decrease memory limits: attempting to set container "a" memory limit (33554432) below current usage (50331648)`
		if c == nil || c.Reason != "Error" || c.Message != want {
			t.Fatalf("condition %+v", c)
		}
		b.runtime.Use("a", 16<<20, 0, 0)
		time.Sleep(retryMost)
		synctest.Wait()
		b.wantGiven("100m", "32Mi")
	})
}

func TestTheConditionsOfAResizeEndWithThePod(t *testing.T) {
	onBench(t, func(b *bench) {
		p := b.run(sized("100m", "64Mi"))
		b.full.Store(new("full"))
		b.resize("200m", "64Mi")
		b.exit(p, "a", 0)
		b.wantGiven("100m", "64Mi")
	})
}

// six is a pod of six containers, each with another kind of resources, as upstream's conformance
// suite resizes one.
func six() *v1.Pod {
	p := podtest.Pod(v1.RestartPolicyAlways, "", "a b c d e f")
	p.Generation = 1
	for i, r := range []struct{ requestCPU, requestMemory, limitCPU, limitMemory string }{
		{"100m", "100Mi", "200m", "200Mi"},
		{"100m", "100Mi", "200m", ""}, // no memory limit
		{"100m", "100Mi", "", "200Mi"},
		{"100m", "100Mi", "", ""},
		{"", "", "", ""},
		{"100m", "", "", ""},
	} {
		p.Spec.Containers[i].Resources = v1.ResourceRequirements{
			Requests: amounts(r.requestCPU, r.requestMemory),
			Limits:   amounts(r.limitCPU, r.limitMemory),
		}
	}
	return p
}

func amounts(cpu, memory string) v1.ResourceList {
	l := v1.ResourceList{}
	if cpu != "" {
		l[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[v1.ResourceMemory] = resource.MustParse(memory)
	}
	return l
}

// limits returns what the runtime has limited a container to.
func (b *bench) limits(container string) (quota, memory int64) {
	b.t.Helper()
	v, _ := b.runner.View("u")
	s := v.Observed.FindContainerStatusByName(container)
	resp, err := b.runtime.ContainerStatus(b.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: s.ID.ID})
	if err != nil {
		b.t.Fatal(err)
	}
	l := resp.Status.Resources.Linux
	return l.CpuQuota, l.MemoryLimitInBytes
}

// addLimits resizes the pod so that containers get limits where they had none, and change nothing
// else.
func (b *bench) addLimits() *v1.Pod {
	b.t.Helper()
	return b.changeSpec(func(p *v1.Pod) {
		for i, l := range map[int]v1.ResourceList{
			1: amounts("200m", "300Mi"), 2: amounts("300m", "200Mi"), 3: amounts("300m", "300Mi"), 5: amounts("", "300Mi"),
		} {
			p.Spec.Containers[i].Resources.Limits = l
		}
	})
}

func resizeUnderway(p *v1.Pod) bool {
	_, c := podutil.GetPodCondition(&p.Status, v1.PodResizeInProgress)
	return c != nil
}

func TestALimitWhereThereWasNoneIsSet(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(six())
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			b.runtime.Use(name, 1<<20, 0, 0)
		}
		if _, memory := b.limits("b"); memory != 0 {
			t.Fatalf("limited before: %d", memory)
		}
		b.runtime.Calls()
		b.runtime.Fail("UpdateContainerResources", grpcstatus.Error(codes.Internal, "broken"))
		b.addLimits()
		if !resizeUnderway(b.get()) {
			t.Error("the resize is called complete before any container has its limit")
		}
		b.runtime.Fail("UpdateContainerResources", nil)
		time.Sleep(retryMost)
		synctest.Wait()
		if resizeUnderway(b.get()) {
			t.Errorf("conditions %+v", b.get().Status.Conditions)
		}
		for name, want := range map[string][2]int64{
			"a": {20000, 200 << 20}, "b": {20000, 300 << 20}, "c": {30000, 200 << 20}, "d": {30000, 300 << 20}, "e": {0, 0}, "f": {0, 300 << 20},
		} {
			if quota, memory := b.limits(name); quota != want[0] || memory != want[1] {
				t.Errorf("container %s: quota %d and memory limit %d, want %v", name, quota, memory, want)
			}
		}
		b.runtime.Calls()
		b.runner.Wake("u")
		synctest.Wait()
		b.wantCalls() // what is as it should be is left alone, that without limits, too
	})
}

// What the container uses already cannot be less than its first limit either.
func TestAFirstMemoryLimitIsNotBelowWhatIsInUse(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(six())
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			b.runtime.Use(name, 1<<20, 0, 0)
		}
		b.runtime.Use("b", 400<<20, 0, 0)
		p := b.addLimits()
		_, c := podutil.GetPodCondition(&b.get().Status, v1.PodResizeInProgress)
		const want = `cannot decrease memory limits: attempting to set container "b" memory limit (314572800) below current usage (419430400)`
		if c == nil || c.Reason != "Error" || c.Message != want {
			t.Errorf("condition %+v", c)
		}
		if _, memory := b.limits("b"); memory != 0 {
			t.Errorf("limited to %d", memory)
		}
		if _, memory := b.limits("d"); memory != 300<<20 {
			t.Errorf("another container of pod %s waits: limited to %d", p.Name, memory)
		}
	})
}

func TestALimitThatIsDeferredIsNotGivenAfterARestart(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(six())
		b.full.Store(new("full"))
		b.addLimits()
		if p := b.afterRestart(); !p.Spec.Containers[1].Resources.Limits.Memory().IsZero() {
			t.Errorf("given %v", p.Spec.Containers[1].Resources)
		}
	})
}

// afterRestart is the only pod as the process that comes next gives it, which tells the runtime
// nothing.
func (b *bench) afterRestart() *v1.Pod {
	b.t.Helper()
	b.runtime.Calls()
	ctx, cancel := context.WithCancel(b.t.Context())
	second := NewRunner(ctx, b.runner.Config)
	defer second.Wait()
	defer cancel()
	second.Apply(b.get())
	synctest.Wait()
	b.wantCalls()
	v, _ := second.View("u")
	return v.Pod
}

// podMemory returns the memory limit of the pod's cgroup in MiB.
func (b *bench) podMemory() int64 {
	b.edges.mu.Lock()
	defer b.edges.mu.Unlock()
	return b.edges.memory >> 20
}

// Regression: the container was started again in a cgroup of the pod that had kept its size.
func TestThePodGrowsBeforeAContainerThatStartsAgain(t *testing.T) {
	for name, edit := range map[string]func(*v1.Pod){
		"by the resize policy": func(p *v1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
				{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer},
			}
		},
		"after a back-off": func(*v1.Pod) {},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				p := sized("100m", "64Mi")
				p.Spec.RestartPolicy = v1.RestartPolicyAlways
				edit(p)
				p = b.run(p)
				if len(p.Spec.Containers[0].ResizePolicy) == 0 {
					b.exit(p, "a", 1)
					b.exit(p, "a", 1) // from now on it waits
				}
				release := b.runtime.Block("CreateContainer")
				b.resize("100m", "128Mi")
				time.Sleep(time.Minute)
				synctest.Wait()
				b.wantInCalls("CreateContainer")
				if got := b.podMemory(); got != 128 {
					t.Errorf("a container is made in a pod with %d MiB", got)
				}
				release()
				synctest.Wait()
				b.wantGiven("100m", "128Mi")
			})
		})
	}
}

func (b *bench) wantInCalls(want string) {
	b.t.Helper()
	if got := b.runtime.Calls(); !slices.Contains(got, want) {
		b.t.Errorf("calls %v, want %s among them", got, want)
	}
}

// Regression: the pod's cgroup was given its smaller size after the first container had been
// checked, while the others were as large as before.
func TestThePodShrinksAfterAllItsContainers(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a b")
		p.Generation = 1
		size := func(memory string) func(*v1.Pod) {
			return func(p *v1.Pod) {
				for i := range p.Spec.Containers {
					p.Spec.Containers[i].Resources = both("100m", memory)
				}
			}
		}
		size("64Mi")(p)
		b.run(p)
		b.runtime.Use("a", 16<<20, 0, 0)
		b.runtime.Use("b", 48<<20, 0, 0)
		b.runtime.Calls()
		b.changeSpec(size("32Mi"))
		b.wantInCalls("UpdateContainerResources") // of a; b uses too much
		if got := b.podMemory(); got != 128 {
			t.Errorf("the pod has %d MiB while a container has more than it shall have", got)
		}

		release := b.runtime.Block("UpdateContainerResources")
		b.runtime.Use("b", 16<<20, 0, 0)
		time.Sleep(retryMost)
		synctest.Wait()
		b.wantInCalls("UpdateContainerResources")
		if got := b.podMemory(); got != 128 {
			t.Errorf("the pod has %d MiB before its containers have less", got)
		}
		b.edges.mu.Lock()
		b.edges.lowerErr = errors.New("the pod uses more")
		b.edges.mu.Unlock()
		release()
		synctest.Wait()
		_, c := podutil.GetPodCondition(&b.get().Status, v1.PodResizeInProgress)
		if c == nil || c.Reason != "Error" || c.Message != "the pod uses more" {
			t.Errorf("condition %+v", c)
		}
		b.edges.mu.Lock()
		b.edges.lowerErr = nil
		b.edges.mu.Unlock()
		time.Sleep(retryMost)
		synctest.Wait()
		if got := b.podMemory(); got != 64 || resizeUnderway(b.get()) {
			t.Errorf("the pod has %d MiB in the end; conditions %+v", got, b.get().Status.Conditions)
		}
	})
}

// An init container that has not ended can be resized, too, though it runs only once.
func TestAnInitContainerIsResized(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyNever, "i", "a")
		p.Generation = 1
		size := func(memory string) func(*v1.Pod) {
			return func(p *v1.Pod) { p.Spec.InitContainers[0].Resources = both("100m", memory) }
		}
		size("64Mi")(p)
		b.run(p)
		b.runtime.Calls()
		b.changeSpec(size("128Mi"))
		b.wantCalls("UpdateContainerResources")
		if _, memory := b.limits("i"); memory != 128<<20 {
			t.Errorf("it has %d bytes", memory)
		}
		s := b.get().Status.InitContainerStatuses[0]
		if s.AllocatedResources.Memory().String() != "128Mi" || s.Resources.Limits.Memory().String() != "128Mi" || resizeUnderway(b.get()) {
			t.Errorf("status %+v", s)
		}
	})
}

// wholePod gives the pod itself amounts, and its only container none.
func wholePod(cpu, memory string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Resources = new(both(cpu, memory)) }
}

func (b *bench) wantPodGiven(cpu, memory string) {
	b.t.Helper()
	s := b.get().Status
	b.wantAmounts(s.AllocatedResources, s.Resources, cpu, memory)
}

func TestThePodItselfIsResized(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyNever, "", "a")
		p.Generation = 1
		wholePod("100m", "64Mi")(p)
		b.run(p)
		b.wantPodGiven("100m", "64Mi")
		b.runtime.Use("a", 1<<20, 0, 0)
		b.runtime.Calls()
		for _, mib := range []int64{128, 32} {
			memory := fmt.Sprintf("%dMi", mib)
			b.changeSpec(wholePod("200m", memory))
			b.wantInCalls("UpdateContainerResources") // its limit is the pod's
			b.wantPodGiven("200m", memory)
			if got := b.podMemory(); got != mib || resizeUnderway(b.get()) {
				t.Errorf("the pod has %d MiB, want %s; conditions %+v", got, memory, b.get().Status.Conditions)
			}
		}
	})
}

// A resize of the pod itself that was deferred is not given by the process that comes next.
func TestAPodThatIsDeferredIsNotGivenAfterARestart(t *testing.T) {
	onBench(t, func(b *bench) {
		p := podtest.Pod(v1.RestartPolicyNever, "", "a")
		p.Generation = 1
		wholePod("100m", "64Mi")(p)
		b.run(p)
		b.full.Store(new("full"))
		b.changeSpec(wholePod("200m", "128Mi"))
		if p := b.afterRestart(); p.Spec.Resources.Limits.Memory().String() != "64Mi" {
			t.Errorf("given %v", p.Spec.Resources)
		}
		b.wantPodGiven("100m", "64Mi")
	})
}
