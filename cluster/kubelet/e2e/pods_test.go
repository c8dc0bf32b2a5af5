// Package e2e runs the kubelet on a real runtime: coracled, or containerd and runc when
// KUBELET_E2E_RUNTIME says so. The kubelet knows neither: what passes on one passes on the other.
package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet"
)

func TestAPodRunsAndIsDeleted(t *testing.T) {
	n := newNode(t, nil)
	p := n.create(n.pod("web", container("c", "sleep")))
	now := n.until(p, "ready", ready)
	s := now.Status
	if s.Phase != v1.PodRunning || s.PodIP == "" || s.HostIP != "127.0.0.1" || s.QOSClass != v1.PodQOSBestEffort || s.StartTime == nil {
		t.Errorf("status of a running pod: %s", describe(now))
	}
	c := s.ContainerStatuses[0]
	if !strings.HasPrefix(c.ContainerID, n.runtime.name+"://") || c.State.Running == nil || !c.Ready || c.Started == nil || !*c.Started ||
		c.Image != n.image {
		t.Errorf("status of its container: %+v", c)
	}
	for _, e := range []string{
		"Normal Pulling Pulling image", "Normal Pulled Successfully pulled image",
		"Normal Created Container created", "Normal Started Container started",
	} {
		n.untilEvent(p, e)
	}
	if hosts := n.exec(p, "c", "cat", "/etc/hosts"); !strings.Contains(hosts, s.PodIP+"\tweb\n") {
		t.Errorf("hosts file:\n%s", hosts)
	}
	n.delete(p, 5)
	n.until(p, "gone", gone)
	n.untilEvent(p, "Normal Killing Stopping container c")
}

func TestInitContainersSidecarsAndTheirOrder(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("ordered", container("main", "append", "/shared/order", "main", ",", "exit", "0"))
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	sidecar := container("sidecar", "append", "/shared/order", "sidecar", ",", "sleep", ",", "append", "/shared/order", "sidecar-ends")
	sidecar.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	sidecar.StartupProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{
		"/guest", "exists",
		"/shared/order",
	}}}}
	p.Spec.InitContainers = []v1.Container{
		container("first", "append", "/shared/order", "first"), sidecar, container("second", "append", "/shared/order", "second"),
	}
	n.defaults(p)
	p = n.create(emptyDir(p))
	now := n.until(p, "succeeded", phase(v1.PodSucceeded))
	// The directory goes with the pod, so the order is read from what ran when.
	at := func(name string) time.Time {
		for _, c := range append(now.Status.InitContainerStatuses, now.Status.ContainerStatuses...) {
			if c.Name == name && c.State.Terminated != nil {
				return c.State.Terminated.StartedAt.Time
			}
		}
		t.Errorf("no end of %s: %s", name, describe(now))
		return time.Time{}
	}
	order := []string{"first", "sidecar", "second", "main"}
	for i := range order[1:] {
		if at(order[i+1]).Before(at(order[i])) {
			t.Errorf("%s began before %s", order[i+1], order[i])
		}
	}
	for _, c := range now.Status.InitContainerStatuses {
		if c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 || c.Name != "sidecar" && !c.Ready {
			t.Errorf("init container: %+v", c)
		}
	}
}

func TestFailingContainersBackOff(t *testing.T) {
	n := newNode(t, nil)
	p := n.create(n.pod("crash", container("c", "append", "/dev/termination-log", "my last word", ",", "exit", "3")))
	now := n.until(p, "in back-off", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	c := now.Status.ContainerStatuses[0]
	if want := fmt.Sprintf("back-off 10s restarting failed container=c pod=crash_default(%s)", p.UID); c.State.Waiting.Message != want {
		t.Errorf("message %q, want %q", c.State.Waiting.Message, want)
	}
	if last := c.LastTerminationState.Terminated; last == nil || last.ExitCode != 3 || last.Reason != "Error" ||
		last.Message != "my last word\n" {
		t.Errorf("last state %+v", last)
	}
	if c.RestartCount != 1 || now.Status.Phase != v1.PodRunning {
		t.Errorf("restarts %d, phase %s", c.RestartCount, now.Status.Phase)
	}
	n.untilEvent(p, "Warning BackOff Back-off restarting failed container c in pod crash_default")
}

func TestAnImageThatCannotBePulled(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("nopull", container("c", "sleep"))
	p.Spec.Containers[0].Image = refused(t) + "/nothing:1"
	p = n.create(p)
	waiting := func(reason string) func(*v1.Pod) bool {
		return func(p *v1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
				p.Status.ContainerStatuses[0].State.Waiting.Reason == reason
		}
	}
	n.until(p, "failing to pull", waiting("ErrImagePull"))
	for _, e := range []string{"Warning Failed Failed to pull image", "Warning Failed Error: ErrImagePull"} {
		n.untilEvent(p, e)
	}
	now := n.until(p, "backing off", waiting("ImagePullBackOff"))
	image := p.Spec.Containers[0].Image
	if got := now.Status.ContainerStatuses[0].State.Waiting.Message; !strings.HasPrefix(got,
		fmt.Sprintf("Back-off pulling image %q: ErrImagePull: ", image)) {
		t.Errorf("message %q", got)
	}
	n.untilEvent(p, fmt.Sprintf("Normal BackOff Back-off pulling image %q", image))
}

func TestProbes(t *testing.T) {
	n := newNode(t, nil)
	c := container("c", "append", "/shared/alive", "x", ",", "serve", "8080")
	exists := func(file string) *v1.Probe {
		return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/guest", "exists", file}}}}
	}
	c.ReadinessProbe = exists("/shared/ready")
	c.LivenessProbe = exists("/shared/alive")
	c.StartupProbe = exists("/shared/alive") // the container may be slower than its first probe
	c.StartupProbe.FailureThreshold = 1000
	web := container("web", "serve", "8081")
	web.ReadinessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{}}}
	web.ReadinessProbe.TCPSocket.Port.IntVal = 8081
	web.StartupProbe = &v1.Probe{FailureThreshold: 1000, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/"}}}
	web.StartupProbe.HTTPGet.Port.IntVal = 8081
	p := n.create(emptyDir(n.pod("probed", c, web)))
	n.untilEvent(p, "Warning Unhealthy Readiness probe failed:")
	n.until(p, "half ready", func(p *v1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 2 && !s[0].Ready && s[1].Ready
	})
	n.exec(p, "c", "append", "/shared/ready", "x")
	n.until(p, "ready", ready)
	n.exec(p, "c", "remove", "/shared/alive")
	now := n.until(p, "restarted", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
	if now.Status.ContainerStatuses[1].RestartCount != 0 {
		t.Error("the other container was restarted too")
	}
	n.untilEvent(p, "Normal Killing Container c failed liveness probe, will be restarted")
}

func TestHooks(t *testing.T) {
	n := newNode(t, nil)
	c := container("c", "sleep", ",", "exit", "0")
	c.Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/guest", "append", "/out/post", "x"}}},
		PreStop:   &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/guest", "append", "/out/pre", "x"}}},
	}
	out := scratch(t)
	p := n.pod("hooked", c)
	hostDir(p, out, "/out")
	p = n.create(p)
	n.until(p, "ready", ready)
	if !there(out, "post") {
		t.Error("the pod is ready and its postStart hook has not run")
	}
	n.delete(p, int64(patience.Seconds())) // the hook's time, too
	n.until(p, "gone", gone)
	if !there(out, "pre") {
		t.Error("the pod is gone and its preStop hook has not run")
	}
}

func TestAFailedPostStartHookEndsTheContainer(t *testing.T) {
	n := newNode(t, nil)
	c := container("c", "sleep")
	c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/guest", "exit", "4"}}}}
	p := n.create(n.pod("badhook", c))
	n.untilEvent(p, "Warning FailedPostStartHook PostStartHook failed")
	n.untilEvent(p, "Normal Killing FailedPostStartHook")
	n.until(p, "waiting", func(p *v1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil &&
			(s[0].State.Waiting.Reason == "PostStartHookError" || s[0].State.Waiting.Reason == "CrashLoopBackOff")
	})
}

func TestActiveDeadline(t *testing.T) {
	n := newNode(t, nil)
	p := n.create(n.pod("short", container("c", "sleep")))
	// Not before its container runs: there is no telling how long that takes.
	limited := n.until(p, "ready", ready).DeepCopy()
	limited.Spec.ActiveDeadlineSeconds = ptr.To(int64(1))
	if _, err := n.kube.CoreV1().Pods("default").Update(n.ctx, limited, update()); err != nil {
		t.Fatal(err)
	}
	now := n.until(p, "failed", phase(v1.PodFailed))
	if now.Status.Reason != "DeadlineExceeded" || now.Status.Message != "Pod was active on the node longer than the specified deadline" {
		t.Errorf("reason %q, message %q", now.Status.Reason, now.Status.Message)
	}
	if now.Status.ContainerStatuses[0].State.Terminated == nil {
		t.Error("the phase is final while a container runs")
	}
}

func TestAKilledKubeletDisturbsNoPod(t *testing.T) {
	n := newNode(t, nil)
	c := container("c", "sleep")
	c.ReadinessProbe = &v1.Probe{
		PeriodSeconds: 60,
		ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/guest", "exit", "0"}}},
	}
	p := n.create(n.pod("steady", c))
	orphan := n.create(n.pod("orphan", container("c", "sleep")))
	before := n.until(p, "ready", ready)
	n.until(orphan, "ready", ready)
	n.stop()
	if err := n.kube.CoreV1().Pods("default").Delete(n.ctx, "orphan", now()); err != nil {
		t.Fatal(err)
	}
	n.start()
	other := n.create(n.pod("after", container("c", "sleep")))
	n.until(other, "ready", ready)
	after := n.until(p, "ready", ready)
	a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if a.ContainerID != b.ContainerID || b.RestartCount != 0 || !after.Status.StartTime.Equal(before.Status.StartTime) {
		t.Errorf("before %+v, after %+v", a, b)
	}
	n.untilNoSandbox(orphan)
}

func TestHostNetworkAndSecurity(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("host", container("c", "sleep"))
	p.Spec.HostNetwork = true
	p.Spec.HostAliases = []v1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"a", "b"}}}
	p.Spec.SecurityContext.RunAsNonRoot = ptr.To(true)
	p.Spec.SecurityContext.RunAsUser = ptr.To(int64(1000))
	p = n.create(p)
	now := n.until(p, "ready", ready)
	if now.Status.PodIP != "127.0.0.1" {
		t.Errorf("pod IP %q", now.Status.PodIP)
	}
	if hosts := n.exec(p, "c", "cat", "/etc/hosts"); !strings.Contains(hosts, "(host network)") || !strings.Contains(hosts, "10.1.2.3\ta\tb") {
		t.Errorf("hosts file:\n%s", hosts)
	}
	root := n.pod("root", container("c", "sleep"))
	root.Spec.SecurityContext.RunAsNonRoot = ptr.To(true)
	root = n.create(root)
	refusedNow := n.until(root, "refused", func(p *v1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	want := fmt.Sprintf("container has runAsNonRoot and image will run as root (pod: \"root_default(%s)\", container: c)", root.UID)
	if got := refusedNow.Status.ContainerStatuses[0].State.Waiting.Message; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

func TestEphemeralContainers(t *testing.T) {
	n := newNode(t, nil)
	p := n.create(n.pod("debugged", container("c", "sleep")))
	current := n.until(p, "ready", ready).DeepCopy()
	current.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		Name: "debug", Image: n.image, Args: []string{"say", "looking"}, ImagePullPolicy: v1.PullIfNotPresent,
	}, TargetContainerName: "c"}}
	if _, err := n.kube.CoreV1().Pods("default").UpdateEphemeralContainers(n.ctx, p.Name, current, update()); err != nil {
		t.Fatal(err)
	}
	n.until(p, "debugged", func(p *v1.Pod) bool {
		s := p.Status.EphemeralContainerStatuses
		return len(s) == 1 && s[0].State.Terminated != nil && s[0].State.Terminated.ExitCode == 0
	})
	if log := n.log(p, "debug", 0); log != "looking\n" {
		t.Errorf("log %q", log)
	}
}

func TestOutOfMemory(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("fat", container("c", "eat", "200"))
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: quantity("64Mi")}
	p = n.create(p)
	now := n.until(p, "failed", phase(v1.PodFailed))
	if end := now.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "OOMKilled" || end.ExitCode != 137 {
		t.Errorf("end %+v", end)
	}
}

func TestAdmission(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("greedy", container("c", "sleep"))
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: quantity("1000")}
	p = n.create(p)
	now := n.until(p, "refused", phase(v1.PodFailed))
	if now.Status.Reason != "OutOfcpu" ||
		!strings.HasPrefix(now.Status.Message,
			"Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: 0, capacity: ") {
		t.Errorf("reason %q, message %q", now.Status.Reason, now.Status.Message)
	}
	n.untilEvent(p, "Warning OutOfcpu Node didn't have enough resource: cpu")
}

// Of the pods that were bound while the kubelet was away, none takes the place of the one that
// runs, whichever the API tells of first.
func TestPodsThatRunAreAdmittedFirst(t *testing.T) {
	n := newNode(t, func(o *kubelet.Options) { o.MaxPods = 1 })
	runs := n.create(n.pod("runs", container("c", "sleep")))
	n.until(runs, "ready", ready)
	n.stop()
	var late []*v1.Pod
	for i := range 8 {
		late = append(late, n.create(n.pod(fmt.Sprint("late-", i), container("c", "sleep"))))
	}
	n.start()
	for _, p := range late {
		if now := n.until(p, "refused", func(p *v1.Pod) bool { return p.Status.StartTime != nil }); now.Status.Reason != "OutOfpods" {
			t.Errorf("pod %s: phase %s, reason %q", p.Name, now.Status.Phase, now.Status.Reason)
		}
	}
	n.until(runs, "ready", ready)
}

// TestManyPods measures what the kubelet is for: from the API's word to the API's knowing.
func TestManyPods(t *testing.T) {
	n := newNode(t, nil)
	warm := n.create(n.pod("warm", container("c", "sleep")))
	n.until(warm, "ready", ready)
	const many = 20
	began := time.Now()
	pods := make([]*v1.Pod, many)
	for i := range pods {
		pods[i] = n.create(n.pod(fmt.Sprintf("many-%d", i), container("c", "sleep")))
	}
	for _, p := range pods {
		n.until(p, "ready", ready)
	}
	t.Logf("%d pods ready after %v", many, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	for _, p := range pods {
		n.delete(p, 2)
	}
	for _, p := range pods {
		n.until(p, "gone", gone)
	}
	t.Logf("%d pods gone after %v", many, time.Since(began).Round(time.Millisecond))
}

func TestAMissingConfigMapIsWaitedFor(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("configured", container("c", "sleep"))
	p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{
		LocalObjectReference: v1.LocalObjectReference{Name: "config"}, Key: "x",
	}}}}
	p = n.create(p)
	now := n.until(p, "refused", func(p *v1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	if got := now.Status.ContainerStatuses[0].State.Waiting.Message; got != `configmap "config" not found` {
		t.Errorf("message %q", got)
	}
	n.untilEvent(p, `Warning Failed Error: configmap "config" not found`)
	config := &v1.ConfigMap{Data: map[string]string{"x": "the value"}}
	config.Name, config.Namespace = "config", "default"
	if _, err := n.kube.CoreV1().ConfigMaps("default").Create(n.ctx, config, made()); err != nil {
		t.Fatal(err)
	}
	n.until(p, "ready", ready)
	if got := n.exec(p, "c", "env", "X"); got != "the value\n" && got != "\n" {
		t.Errorf("the variable is %q", got)
	}
}

func TestAKilledRuntimeDisturbsNoPod(t *testing.T) {
	n := newNode(t, nil)
	p := n.create(n.pod("steady", container("c", "sleep")))
	before := n.until(p, "ready", ready)
	n.runtime.stop(syscall.SIGKILL)
	while := n.create(n.pod("while", container("c", "sleep")))
	n.runtime.start()
	n.until(while, "ready", ready)
	after := n.until(p, "ready", ready)
	if a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		t.Errorf("before %+v, after %+v", a, b)
	}
}

func TestResize(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("grows", container("c", "sleep"))
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: quantity("100m"), v1.ResourceMemory: quantity("64Mi")}
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: quantity("200m"), v1.ResourceMemory: quantity("128Mi")}
	p = n.create(p)
	before := n.until(p, "ready", ready)
	more := before.DeepCopy()
	more.Spec.Containers[0].Resources.Limits[v1.ResourceMemory] = quantity("256Mi")
	more.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = quantity("150m")
	if _, err := n.kube.CoreV1().Pods("default").Update(n.ctx, more, update()); err != nil {
		t.Fatal(err)
	}
	after := n.until(p, "resized", func(p *v1.Pod) bool {
		r := p.Status.ContainerStatuses[0].Resources
		return r != nil && r.Limits.Memory().Cmp(quantity("256Mi")) == 0
	})
	a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if a.ContainerID != b.ContainerID || b.RestartCount != 0 || b.Resources.Requests.Cpu().String() != "150m" {
		t.Errorf("%+v", b)
	}
}

// memoryLimit returns the limit that a container's cgroup has, empty for none that a container
// could reach.
func (n *testNode) memoryLimit(p *v1.Pod, container int) string {
	n.t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[container].ContainerID, "://")
	for _, pattern := range []string{"/sys/fs/cgroup/memory/%s/memory.limit_in_bytes", "/sys/fs/cgroup/%s/memory.max"} {
		found, _ := filepath.Glob(fmt.Sprintf(pattern,
			filepath.Join(n.opts.CgroupRoot, "kubepods", "burstable", "pod"+string(p.UID), "*"+id+"*")))
		for _, file := range found {
			content, err := os.ReadFile(file)
			if err != nil {
				n.t.Fatal(err)
			}
			if limit := strings.TrimSpace(string(content)); limit != "max" && limit != "9223372036854771712" {
				return limit
			}
			return ""
		}
	}
	n.t.Fatalf("container %s has no cgroup", id)
	return ""
}

func TestAResizeSetsTheFirstLimit(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("grows", container("a", "sleep"), container("b", "sleep"))
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources.Requests = v1.ResourceList{v1.ResourceCPU: quantity("100m"), v1.ResourceMemory: quantity("64Mi")}
	}
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: quantity("128Mi")}
	p = n.create(p)
	before := n.until(p, "ready", ready)
	if has, gets := n.memoryLimit(before, 0), n.memoryLimit(before, 1); has != fmt.Sprint(128<<20) || gets != "" {
		t.Fatalf("limits before: %q and %q", has, gets)
	}
	more := before.DeepCopy()
	more.Generation++
	more.Spec.Containers[1].Resources.Limits = v1.ResourceList{v1.ResourceMemory: quantity("256Mi")}
	if _, err := n.kube.CoreV1().Pods("default").Update(n.ctx, more, update()); err != nil {
		t.Fatal(err)
	}
	after := n.until(p, "resized", func(p *v1.Pod) bool {
		_, underway := podutil.GetPodCondition(&p.Status, v1.PodResizeInProgress)
		return p.Status.ObservedGeneration == more.Generation && underway == nil
	})
	if has, gets := n.memoryLimit(after, 0), n.memoryLimit(after, 1); has != fmt.Sprint(128<<20) || gets != fmt.Sprint(256<<20) {
		t.Errorf("limits after: %q and %q", has, gets)
	}
}

func TestAResizeWaitsForRoom(t *testing.T) {
	n := newNode(t, nil)
	cpu := int64(runtime.NumCPU()) * 1000
	asking := func(p *v1.Pod, milli int64) *v1.Pod {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
		return p
	}
	other := n.create(asking(n.pod("other", container("c", "sleep")), cpu-200))
	p := n.create(asking(n.pod("grows", container("c", "sleep")), 100))
	n.until(other, "ready", ready)
	more := asking(n.until(p, "ready", ready).DeepCopy(), 300)
	more.Generation++
	if _, err := n.kube.CoreV1().Pods("default").Update(n.ctx, more, update()); err != nil {
		t.Fatal(err)
	}
	pending := func(p *v1.Pod) *v1.PodCondition {
		_, c := podutil.GetPodCondition(&p.Status, v1.PodResizePending)
		return c
	}
	now := n.until(p, "deferred", func(p *v1.Pod) bool { return pending(p) != nil })
	want := fmt.Sprintf("Node didn't have enough resource: cpu, requested: 300, used: %d, capacity: %d", cpu-200, cpu)
	if c := pending(now); c.Reason != v1.PodReasonDeferred || c.Message != want {
		t.Errorf("condition %+v", c)
	}
	if given := now.Status.ContainerStatuses[0].AllocatedResources.Cpu().String(); given != "100m" {
		t.Errorf("it was given %s", given)
	}
	n.delete(other, 1)
	n.until(other, "gone", gone)
	n.until(p, "resized", func(p *v1.Pod) bool {
		return pending(p) == nil && p.Status.ContainerStatuses[0].Resources.Requests.Cpu().String() == "300m"
	})
}

func TestAnImpatientDeletionOvertakesAPatientOne(t *testing.T) {
	n := newNode(t, nil)
	p := n.create(n.pod("stubborn", container("c", "trap")))
	n.until(p, "ready", ready)
	n.delete(p, 2*int64(patience.Seconds()))
	n.untilEvent(p, "Normal Killing Stopping container c")
	n.delete(p, 1)
	n.until(p, "gone", gone) // in less time than the first deletion has
}
