package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/probe"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type results map[string]probe.Result

func (r results) Get(id string, kind probe.Kind) probe.Result { return r[id+"/"+string(kind)] }

// onePod has init containers (a star marks a sidecar) and containers with these names.
func onePod(policy v1.RestartPolicy, inits, regulars string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Generation: 2}}
	p.Spec.RestartPolicy = policy
	for _, name := range strings.Fields(inits) {
		c := v1.Container{Name: strings.TrimSuffix(name, "*"), Image: "image"}
		if strings.HasSuffix(name, "*") {
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for _, name := range strings.Fields(regulars) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: "image"})
	}
	return p
}

// observed is a pod with a ready sandbox and these instances, the newest first: "name running",
// "name created", "name exit 1".
func observed(t *testing.T, instances ...string) *kubecontainer.PodStatus {
	t.Helper()
	o := &kubecontainer.PodStatus{IPs: []string{"fd00::1", "10.0.0.9"}, SandboxStatuses: []*runtimeapi.PodSandboxStatus{{
		Id: "s", Metadata: &runtimeapi.PodSandboxMetadata{}, State: runtimeapi.PodSandboxState_SANDBOX_READY,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.9"},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{}}},
	}}}
	for i, text := range instances {
		f := strings.Fields(text)
		s := &kubecontainer.Status{
			Name: f[0], Image: "image", ImageRef: "image@sha256:1", StartedAt: noon, FinishedAt: noon.Add(time.Minute),
			ID: kubecontainer.ContainerID{Type: "coracle", ID: fmt.Sprintf("%s%d", f[0], i)},
		}
		switch f[1] {
		case "running":
			s.State = kubecontainer.ContainerStateRunning
		case "created":
			s.State = kubecontainer.ContainerStateCreated
		case "exit":
			s.State, s.Reason = kubecontainer.ContainerStateExited, "Error"
			if _, err := fmt.Sscan(f[2], &s.ExitCode); err != nil {
				t.Fatal(err)
			}
			if s.ExitCode == 0 {
				s.Reason = "Completed"
			}
		}
		o.ContainerStatuses = append(o.ContainerStatuses, s)
		o.ActiveContainerStatuses = append(o.ActiveContainerStatuses, s)
	}
	return o
}

// line sums a status up: phase, conditions that are true, containers.
func line(s v1.PodStatus) string {
	parts := []string{string(s.Phase)}
	for _, c := range s.Conditions {
		if c.Status == v1.ConditionTrue && c.Type != v1.PodScheduled {
			parts = append(parts, string(c.Type))
		}
	}
	for _, all := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for _, c := range all {
			word := c.Name + "="
			switch {
			case c.State.Running != nil:
				word += "running"
			case c.State.Terminated != nil:
				word += fmt.Sprintf("%s:%d", c.State.Terminated.Reason, c.State.Terminated.ExitCode)
			case c.State.Waiting != nil:
				word += c.State.Waiting.Reason
			}
			if t := c.LastTerminationState.Terminated; t != nil {
				word += fmt.Sprintf("(%s:%d)", t.Reason, t.ExitCode)
			}
			if c.Ready {
				word += "+"
			}
			parts = append(parts, word)
		}
	}
	return strings.Join(parts, " ")
}

func TestGenerate(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	const all = "PodReadyToStartContainers Initialized Ready ContainersReady"
	const made = "PodReadyToStartContainers Initialized"
	crash := map[string]v1.ContainerStateWaiting{"a": {Reason: "CrashLoopBackOff"}}
	for _, tc := range []struct {
		name       string
		policy     v1.RestartPolicy
		inits, run string
		edit       func(*Input)
		seen       []string
		waiting    map[string]v1.ContainerStateWaiting
		results    results
		ended      bool
		want       string
	}{
		{name: "nothing yet", policy: always, run: "a", edit: empty, want: "Pending Initialized a=ContainerCreating"},
		{
			name: "nothing yet, with init containers", policy: always, inits: "i", run: "a", edit: empty,
			want: "Pending i=PodInitializing a=PodInitializing",
		},
		{name: "made", policy: always, run: "a", seen: []string{"a created"}, want: "Pending " + made + " a="},
		{name: "runs", policy: always, run: "a", seen: []string{"a running"}, want: "Running " + all + " a=running+"},
		{
			name: "not ready", policy: always, run: "a", seen: []string{"a running"},
			edit: func(in *Input) { in.Pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{} }, want: "Running " + made + " a=running",
		},
		{
			name: "ready", policy: always, run: "a", seen: []string{"a running"}, results: results{"a0/Readiness": probe.Success},
			edit: func(in *Input) { in.Pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{} }, want: "Running " + all + " a=running+",
		},
		{
			name: "not started", policy: always, run: "a", seen: []string{"a running"}, results: results{"a0/Readiness": probe.Success},
			edit: func(in *Input) { in.Pod.Spec.Containers[0].StartupProbe = &v1.Probe{} }, want: "Running " + made + " a=running",
		},
		{
			name: "a readiness gate", policy: always, run: "a", seen: []string{"a running"},
			edit: func(in *Input) { in.Pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "x"}} },
			want: "Running PodReadyToStartContainers Initialized ContainersReady a=running+",
		},
		{name: "crashing", policy: always, run: "a", seen: []string{"a exit 1", "a exit 2"}, waiting: crash, want: "Running " + made +
			" a=CrashLoopBackOff(Error:1)"},
		{name: "restarted", policy: always, run: "a", seen: []string{"a running", "a exit 2"}, want: "Running " + all + " a=running(Error:2)+"},
		{name: "one of two ended", policy: never, run: "a b", seen: []string{"a exit 0", "b running"}, want: "Running " + made +
			" a=Completed:0 b=running+"},
		{name: "succeeded", policy: never, run: "a b", seen: []string{"a exit 0", "b exit 0"}, want: "Succeeded " + made +
			" a=Completed:0 b=Completed:0"},
		{name: "failed", policy: never, run: "a b", seen: []string{"a exit 0", "b exit 3"}, want: "Failed " + made + " a=Completed:0 b=Error:3"},
		{name: "to be tried again", policy: onFailure, run: "a", seen: []string{"a exit 3"}, want: "Running " + made + " a=Error:3"},
		{name: "stopped for good", policy: always, run: "a", seen: []string{"a exit 0"}, ended: true, want: "Succeeded " + made +
			" a=Completed:0"},
		{
			name: "an image that cannot be pulled", policy: always, run: "a",
			waiting: map[string]v1.ContainerStateWaiting{"a": {Reason: "ErrImagePull"}},
			want:    "Pending " + made + " a=ErrImagePull",
		},
		{
			name: "initializing", policy: always, inits: "i j", run: "a", seen: []string{"i exit 0", "j running"},
			want: "Pending PodReadyToStartContainers i=Completed:0+ j=running a=PodInitializing",
		},
		{
			name: "initialization failed for good", policy: never, inits: "i", run: "a", seen: []string{"i exit 5"},
			want: "Failed PodReadyToStartContainers i=Error:5 a=PodInitializing",
		},
		{
			name: "initialization is tried again", policy: always, inits: "i", run: "a", seen: []string{"i exit 5"},
			want: "Pending PodReadyToStartContainers i=Error:5 a=PodInitializing",
		},
		{name: "an init container was removed", policy: always, inits: "i", run: "a", seen: []string{"a running"}, want: "Running " + all +
			" i=Completed:0+ a=running+"},
		{name: "sidecar and container run", policy: always, inits: "s*", run: "a", seen: []string{"a running", "s running"}, want: "Running " +
			all + " s=running+ a=running+"},
		{
			name: "a sidecar that ends does not end the pod", policy: never, inits: "s*", run: "a", seen: []string{"a exit 0", "s exit 1"},
			want: "Succeeded " + made + " s=Error:1 a=Completed:0",
		},
		{
			name: "a pod whose sidecar still runs has not ended", policy: never, inits: "s*", run: "a", seen: []string{"a exit 0", "s running"},
			want: "Running " + made + " s=running+ a=Completed:0",
		},
		{
			name: "the runtime forgot a container that ran", policy: always, run: "a",
			edit: func(in *Input) {
				in.Old.ContainerStatuses = []v1.ContainerStatus{{Name: "a", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
			},
			want: "Running " + made + " a=ContainerCreating(ContainerStatusUnknown:137)",
		},
		{
			name: "the end that was reported stays", policy: always, run: "a", seen: []string{"a running"},
			edit: func(in *Input) { in.Pod.Status.Phase = v1.PodFailed }, want: "Failed " + made + " a=running+",
		},
		{
			name: "evicted", policy: always, run: "a", seen: []string{"a running"},
			edit: func(in *Input) { in.Evict = &Eviction{Reason: "DeadlineExceeded"} }, want: "Failed " + made + " a=running+",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Input{
				Pod: onePod(tc.policy, tc.inits, tc.run), Observed: observed(t, tc.seen...), Waiting: tc.waiting,
				Results: tc.results, Ended: tc.ended, Now: noon, HostIPs: []string{"192.0.2.1"},
			}
			if tc.edit != nil {
				tc.edit(&in)
			}
			if got := line(Generate(in)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func empty(in *Input) { in.Observed = &kubecontainer.PodStatus{} }

func TestGenerateTheRest(t *testing.T) {
	in := Input{
		Pod: onePod(v1.RestartPolicyAlways, "", "a"), Observed: observed(t, "a running"), Results: results{},
		Now: noon.Add(time.Millisecond), HostIPs: []string{"192.0.2.1", "fd01::1"},
	}
	in.Pod.Status.Conditions = []v1.PodCondition{{Type: "mine", Status: v1.ConditionTrue}}
	s := Generate(in)
	if s.PodIP != "10.0.0.9" || len(s.PodIPs) != 2 || s.PodIPs[1].IP != "fd00::1" {
		t.Errorf("addresses %v: the node's family comes first", s.PodIPs)
	}
	if s.HostIP != "192.0.2.1" || len(s.HostIPs) != 2 || s.ObservedGeneration != 2 || s.QOSClass != v1.PodQOSBestEffort {
		t.Errorf("%+v", s)
	}
	if s.Conditions[0].Type != "mine" {
		t.Error("a condition of somebody else's was dropped")
	}
	if !s.StartTime.Time.Equal(noon) {
		t.Errorf("start %v: whole seconds are what the API keeps", s.StartTime)
	}
	c := s.ContainerStatuses[0]
	if c.ContainerID != "coracle://a0" || c.ImageID != "image@sha256:1" || !*c.Started {
		t.Errorf("%+v", c)
	}
	in.Old, in.Now = s, noon.Add(time.Hour)
	again := Generate(in)
	if !same(s, again) {
		t.Errorf("the same facts an hour later:\n%v\n%v", s, again)
	}
	in.Pod.Spec.HostNetwork, in.Observed.IPs = true, nil
	if s := Generate(in); s.PodIP != "192.0.2.1" || len(s.PodIPs) != 2 {
		t.Errorf("host network: %v", s.PodIPs)
	}
}

func TestRejected(t *testing.T) {
	s := Rejected(onePod(v1.RestartPolicyAlways, "", "a"), "OutOfcpu", "too much", noon)
	if s.Phase != v1.PodFailed || s.Reason != "OutOfcpu" || s.Message != "Pod was rejected: too much" || s.StartTime == nil {
		t.Errorf("%+v", s)
	}
}
