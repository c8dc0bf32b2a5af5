package decide

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/internal/podtest"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// results are probes' answers by "id/kind".
type results map[string]probe.Result

func (r results) Get(id string, kind probe.Kind) probe.Result { return r[id+"/"+string(kind)] }

// state is one container instance in short: "name state [exit code]".
func state(t *testing.T, pod *v1.Pod, text string) *kubecontainer.Status {
	t.Helper()
	s := &kubecontainer.Status{CreatedAt: noon, FinishedAt: noon}
	var word string
	if _, err := fmt.Sscan(text, &s.Name, &word); err != nil {
		t.Fatal(err)
	}
	s.ID = kubecontainer.ContainerID{Type: "coracle", ID: "id-" + s.Name}
	if c := kubecontainer.GetContainerSpec(pod, s.Name); c != nil {
		s.Hash = kubecontainer.HashContainer(c)
	}
	switch word {
	case "running":
		s.State = kubecontainer.ContainerStateRunning
	case "created":
		s.State = kubecontainer.ContainerStateCreated
	case "unknown":
		s.State = kubecontainer.ContainerStateUnknown
	case "changed":
		s.State, s.Hash = kubecontainer.ContainerStateRunning, 1
	default:
		s.State = kubecontainer.ContainerStateExited
		if _, err := fmt.Sscan(strings.TrimPrefix(word, "exited:"), &s.ExitCode); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// summary writes actions down as one line.
func summary(a Actions) string {
	var parts []string
	if a.StopAll {
		parts = append(parts, "stop all")
	}
	for _, s := range a.Stop {
		parts = append(parts, "stop "+s.Container.Name+" ("+s.Message+")")
	}
	for _, s := range a.Reset {
		parts = append(parts, "reset "+s.Name)
	}
	if a.Sandbox {
		parts = append(parts, fmt.Sprintf("sandbox %d", a.Attempt))
	}
	for _, s := range a.Start {
		parts = append(parts, "start "+s.Container.Name)
	}
	for _, w := range a.Wait {
		parts = append(parts, fmt.Sprintf("%s waits %s", w.Container.Name, w.BackOff))
	}
	return strings.Join(parts, "; ")
}

const (
	noSandbox   = ""
	readySand   = "ready"
	stoppedSand = "stopped"
)

func observed(t *testing.T, p *v1.Pod, sandbox string, containers ...string) *kubecontainer.PodStatus {
	t.Helper()
	o := &kubecontainer.PodStatus{ID: p.UID, IPs: []string{"10.0.0.1"}}
	if sandbox != noSandbox {
		s := &runtimeapi.PodSandboxStatus{
			Id: "sandbox", Metadata: &runtimeapi.PodSandboxMetadata{}, State: runtimeapi.PodSandboxState_SANDBOX_READY,
			Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
			Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
				Options: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_POD},
			}},
		}
		if sandbox == stoppedSand {
			s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
		o.SandboxStatuses = []*runtimeapi.PodSandboxStatus{s}
	}
	for _, c := range containers {
		o.ContainerStatuses = append(o.ContainerStatuses, state(t, p, c))
	}
	return o
}

func TestDecide(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	for _, tc := range []struct {
		name       string
		policy     v1.RestartPolicy
		inits, run string
		edit       func(*v1.Pod)
		sandbox    string
		state      []string
		results    results
		want       string
	}{
		{name: "a new pod", policy: always, run: "a b", want: "stop all; sandbox 0; start a; start b"},
		{name: "a new pod with init containers", policy: always, inits: "i j", run: "a", want: "stop all; sandbox 0; start i"},
		{name: "all is well", policy: always, run: "a", sandbox: readySand, state: []string{"a running"}, want: ""},
		{name: "made but not started", policy: always, run: "a", sandbox: readySand, state: []string{"a created"}, want: "start a"},
		{
			name: "an exit is followed by a start", policy: always, run: "a b", sandbox: readySand, state: []string{"a exited:0", "b running"},
			want: "start a",
		},
		{
			name: "success is enough on failure", policy: onFailure, run: "a b", sandbox: readySand, state: []string{"a exited:0", "b running"},
			want: "",
		},
		{name: "failure is not", policy: onFailure, run: "a b", sandbox: readySand, state: []string{"a exited:1", "b running"}, want: "start a"},
		{name: "never again", policy: never, run: "a b", sandbox: readySand, state: []string{"a exited:1", "b running"}, want: ""},
		{
			name: "nothing left to do", policy: never, run: "a b", sandbox: readySand, state: []string{"a exited:1", "b exited:0"},
			want: "stop all",
		},
		{
			name: "sidecars do not keep a pod alive", policy: never, inits: "s*", run: "a", sandbox: readySand,
			state: []string{"s running", "a exited:0"}, want: "stop all",
		},
		{
			name: "a definition changed", policy: never, run: "a", sandbox: readySand, state: []string{"a changed"},
			want: "stop a (Container a definition changed, will be restarted); start a",
		},
		{
			name: "unknown is killed first", policy: always, run: "a", sandbox: readySand, state: []string{"a unknown"},
			want: `stop a (Container is in "unknown" state, try killing it before restart); start a`,
		},
		{
			name: "liveness failed", policy: always, run: "a", sandbox: readySand, state: []string{"a running"},
			results: results{"id-a/Liveness": probe.Failure},
			want:    "stop a (Container a failed liveness probe, will be restarted); start a",
		},
		{
			name: "startup failed and never again", policy: never, run: "a", sandbox: readySand, state: []string{"a running"},
			results: results{"id-a/Startup": probe.Failure}, want: "stop all; stop a (Container a failed startup probe)",
		},
		{
			name: "the sandbox is gone", policy: always, run: "a", sandbox: stoppedSand, state: []string{"a exited:0"},
			want: "stop all; sandbox 1; start a",
		},
		{
			name: "the sandbox of a pod that ran once is gone", policy: never, run: "a", sandbox: stoppedSand, state: []string{"a exited:1"},
			want: "stop all",
		},
		{name: "the sandbox failed before anything ran", policy: never, run: "a", sandbox: stoppedSand, want: "stop all; sandbox 1; start a"},
		{
			name: "only what has not succeeded runs in a new sandbox", policy: onFailure, run: "a b", sandbox: stoppedSand,
			state: []string{"a exited:0", "b exited:1"}, want: "stop all; sandbox 1; start b",
		},
		{
			name: "no new sandbox when all have succeeded", policy: onFailure, run: "a", sandbox: stoppedSand, state: []string{"a exited:0"},
			want: "stop all",
		},
		{
			name: "a new sandbox begins with the init containers", policy: always, inits: "i", run: "a", sandbox: stoppedSand,
			state: []string{"i exited:0", "a exited:1"}, want: "stop all; sandbox 1; start i",
		},
		{
			name: "host network was asked for since", policy: always, run: "a", sandbox: readySand, state: []string{"a running"},
			edit: func(p *v1.Pod) { p.Spec.HostNetwork = true }, want: "stop all; sandbox 1; start a",
		},
		{name: "the first init container", policy: always, inits: "i j", run: "a", sandbox: readySand, want: "start i"},
		{name: "an init container runs", policy: always, inits: "i j", run: "a", sandbox: readySand, state: []string{"i running"}, want: ""},
		{
			name: "the next init container", policy: always, inits: "i j", run: "a", sandbox: readySand, state: []string{"i exited:0"},
			want: "start j",
		},
		{
			name: "the init containers are done", policy: always, inits: "i j", run: "a", sandbox: readySand,
			state: []string{"i exited:0", "j exited:0"}, want: "start a",
		},
		{
			name: "an init container failed", policy: always, inits: "i j", run: "a", sandbox: readySand,
			state: []string{"i exited:0", "j exited:1"}, want: "start j",
		},
		{
			name: "an init container failed for good", policy: never, inits: "i j", run: "a", sandbox: readySand, state: []string{"i exited:1"},
			want: "stop all",
		},
		{
			name: "done init containers were removed", policy: always, inits: "i j", run: "a", sandbox: readySand, state: []string{"a running"},
			want: "",
		},
		{
			name: "a sidecar lets the next begin", policy: always, inits: "s* i", run: "a", sandbox: readySand, state: []string{"s running"},
			want: "start i",
		},
		{
			name: "a sidecar that has not started does not", policy: always, inits: "s* i", run: "a", sandbox: readySand,
			state: []string{"s running"},
			edit:  func(p *v1.Pod) { p.Spec.InitContainers[0].StartupProbe = &v1.Probe{} }, want: "",
		},
		{
			name: "a sidecar whose startup failed", policy: always, inits: "s* i", run: "a", sandbox: readySand, state: []string{"s running"},
			edit:    func(p *v1.Pod) { p.Spec.InitContainers[0].StartupProbe = &v1.Probe{} },
			results: results{"id-s/Startup": probe.Failure}, want: "stop s (Init container s failed startup probe); start s",
		},
		{
			name: "an ended sidecar is started again next to what runs", policy: always, inits: "s* i", run: "a", sandbox: readySand,
			state: []string{"s exited:1", "i exited:0", "a running"}, want: "start s",
		},
		{
			name: "a removed sidecar too", policy: always, inits: "s* i", run: "a", sandbox: readySand, state: []string{"i exited:0", "a running"},
			want: "start s",
		},
		{
			name: "a sidecar's liveness failed", policy: never, inits: "s*", run: "a", sandbox: readySand, state: []string{"s running", "a running"},
			results: results{"id-s/Liveness": probe.Failure}, want: "stop s (Init container s failed liveness probe); start s",
		},
		{
			name: "an ephemeral container is started once", policy: always, run: "a", sandbox: readySand, state: []string{"a running", "e exited:1"},
			edit: func(p *v1.Pod) {
				for _, name := range []string{"e", "f"} {
					p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{
						EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: name},
					})
				}
			},
			want: "start f",
		},
		{
			name: "a container's own policy counts", policy: never, run: "a b", sandbox: readySand, state: []string{"a exited:1", "b running"},
			edit: func(p *v1.Pod) { p.Spec.Containers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyOnFailure) },
			want: "start a",
		},
		{
			name: "a pod that is being deleted starts nothing", policy: always, run: "a", sandbox: readySand, state: []string{"a exited:1"},
			edit: func(p *v1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }, want: "stop all",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := podtest.Pod(tc.policy, tc.inits, tc.run)
			if tc.edit != nil {
				tc.edit(p)
			}
			o := observed(t, p, tc.sandbox, tc.state...)
			before := p.DeepCopy()
			got := summary(Next(Facts{Pod: p, Observed: o, Results: tc.results}))
			if got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
			if fmt.Sprint(before) != fmt.Sprint(p) {
				t.Error("the pod was changed")
			}
		})
	}
}

func TestDecideHoldsBackWhatCrashes(t *testing.T) {
	clock := testingclock.NewFakeClock(noon)
	backOff := flowcontrol.NewFakeBackOff(crashFirst, crashMost, clock)
	p := podtest.Pod(v1.RestartPolicyAlways, "i s*", "a b")
	decide := func(containers ...string) string {
		o := observed(t, p, readySand, containers...)
		for _, s := range o.ContainerStatuses {
			s.FinishedAt = clock.Now()
		}
		return summary(Next(Facts{Pod: p, Observed: o, Results: results{}, BackOff: backOff}))
	}
	if got := decide("i exited:0", "s running", "a exited:1", "b running"); got != "start a" {
		t.Errorf("the first end: %q", got)
	}
	a := &p.Spec.Containers[0]
	for _, want := range []string{"10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"} {
		backOff.Next(BackOffKey(a), clock.Now())
		if got := decide("i exited:0", "s running", "a exited:1", "b running"); got != "a waits "+want {
			t.Errorf("after %s: %q", want, got)
		}
		clock.Step(crashMost)
	}
	// Regression: when the clock was set back, it waited until the clock had caught up.
	clock.SetTime(clock.Now().Add(-time.Hour))
	o := observed(t, p, readySand, "i exited:0", "s running", "a exited:1", "b running")
	for _, s := range o.ContainerStatuses {
		s.FinishedAt = clock.Now().Add(time.Hour)
	}
	if got := summary(Next(Facts{Pod: p, Observed: o, Results: results{}, BackOff: backOff})); got != "start a" {
		t.Errorf("the clock was set back: %q", got)
	}
	clock.Step(time.Hour)
	// It runs for longer than twice the longest back-off: it starts again.
	clock.Step(2*crashMost + time.Second)
	if got := decide("i exited:0", "s running", "a exited:1", "b running"); got != "start a" {
		t.Errorf("after a long run: %q", got)
	}
	// A regular init container in back-off holds back those after it.
	i := &p.Spec.InitContainers[0]
	backOff.Next(BackOffKey(i), clock.Now())
	if got := decide("i exited:1"); got != "i waits 10s" {
		t.Errorf("an init container that crashes: %q", got)
	}
	// Another definition is another container.
	i.Image = "other"
	if got := decide("i exited:1"); got != "start i" {
		t.Errorf("an init container that was changed: %q", got)
	}
}

func TestResetsLeaveTheCauseForLast(t *testing.T) {
	p := podtest.Pod(v1.RestartPolicyAlways, "i", "a b")
	p.Spec.Containers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever)
	p.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	o := observed(t, p, readySand, "a exited:42", "b running", "i exited:0")
	a := Next(Facts{Pod: p, Observed: o, Results: results{}, ResetAll: true})
	var names []string
	for _, s := range a.Reset {
		names = append(names, s.Name)
	}
	if !slices.Equal(names, []string{"b", "i", "a"}) {
		t.Errorf("reset %v", names)
	}
}
