// Package decide says what a pod needs next: a pure function of its spec, of what the runtime has
// of it, and of the time.
package decide

import (
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	runtimeutil "k8s.io/kubernetes/pkg/kubelet/kuberuntime/util"

	"github.com/coracle-project/coracle/cluster/kubelet/probe"
)

// Facts are what the next step of a pod follows from.
type Facts struct {
	Pod      *v1.Pod
	Observed *kubecontainer.PodStatus
	Results  interface {
		Get(id string, kind probe.Kind) probe.Result
	}
	// BackOff is the pod's own, by BackOffKey; its clock is the decision's.
	BackOff *flowcontrol.Backoff
	// ResetAll is set while a container's restart rule has all containers start again.
	ResetAll bool
	// Restart are containers, by name and id, whose new resources take effect when they start
	// again.
	Restart map[string]string
}

// Actions are what brings a pod closer to its spec. They are carried out in the order of the
// fields.
type Actions struct {
	// StopAll ends all containers and the sandbox: it is to be replaced, or nothing is left to do.
	StopAll bool
	// Stop ends single containers.
	Stop []Stop
	// Reset kills and removes containers, in this order.
	Reset []*kubecontainer.Status
	// Sandbox is set if a new sandbox must be created.
	Sandbox bool
	// Attempt numbers the new sandbox, or the one that is.
	Attempt uint32
	// SandboxID is the newest sandbox, empty if there is none that is worth keeping.
	SandboxID string
	// Start makes and starts containers, in this order; when a regular init container cannot be
	// started, those after it are not tried.
	Start []Start
	// Wait are containers that would be started but for their back-off.
	Wait []Wait
	// Initialized says that the init containers are done.
	Initialized bool
}

// Stop is one container to end.
type Stop struct {
	Container *v1.Container
	ID        kubecontainer.ContainerID
	Message   string
	Reason    StopReason
}

// StopReason is why a container is ended; it decides the grace it gets.
type StopReason string

// The reasons that matter for the grace; all others are the same.
const (
	StopForLiveness StopReason = "LivenessProbe"
	StopForStartup  StopReason = "StartupProbe"
)

// Start is one container to make and start.
type Start struct {
	Container *v1.Container
	Kind      Kind
	// Target is the container whose processes an ephemeral one wants to see.
	Target string
}

// Kind says which of a pod's lists a container is in.
type Kind int

// The lists.
const (
	Regular Kind = iota
	Init
	Ephemeral
)

// Wait is a container in back-off.
type Wait struct {
	Container *v1.Container
	BackOff   time.Duration
	Until     time.Time
}

// resizeRestarts tells why a container is started again whose resize policy asks for that.
const resizeRestarts = "Container %s resize requires restart"

// Next returns the next actions. It calls nothing and changes nothing.
func Next(f Facts) Actions {
	var a Actions
	change, attempt, id := runtimeutil.PodSandboxChanged(f.Pod, f.Observed)
	a.Attempt, a.SandboxID = attempt, id
	switch {
	case f.ResetAll:
		a.Reset = resets(f)
	case change:
		a.StopAll = true
		f.withoutSandbox(&a)
	default:
		f.withSandbox(&a)
	}
	f.holdBack(&a)
	return a
}

// withoutSandbox decides whether a pod that has no usable sandbox gets one, and what runs first.
func (f *Facts) withoutSandbox(a *Actions) {
	if !restarts(f.Pod) && a.Attempt != 0 && len(f.Observed.ContainerStatuses) != 0 {
		return // it ran once, and must not run again
	}
	var start []Start
	for i := range f.Pod.Spec.Containers {
		c := &f.Pod.Spec.Containers[i]
		if onlyUntilSuccess(f.Pod, c) && succeeded(f.Observed.FindContainerStatusByName(c.Name)) {
			continue
		}
		start = append(start, Start{Container: c})
	}
	if len(start) == 0 && f.anyCreated() {
		return // all have succeeded
	}
	a.Sandbox = true
	if len(f.Pod.Spec.InitContainers) > 0 {
		a.Start = []Start{{Container: &f.Pod.Spec.InitContainers[0], Kind: Init}}
		return
	}
	a.Initialized = true
	a.Start = start
}

// withSandbox looks at each container of a pod whose sandbox is fine.
func (f *Facts) withSandbox(a *Actions) {
	for i := range f.Pod.Spec.EphemeralContainers {
		e := &f.Pod.Spec.EphemeralContainers[i]
		if f.Observed.FindContainerStatusByName(e.Name) == nil { // they are started once
			c := v1.Container(e.EphemeralContainerCommon)
			a.Start = append(a.Start, Start{Container: &c, Kind: Ephemeral, Target: e.TargetContainerName})
		}
	}
	ephemerals := len(a.Start)
	if f.initContainers(a); a.StopAll || !a.Initialized {
		return
	}
	keep, start := 0, 0
	for i := range f.Pod.Spec.Containers {
		c := &f.Pod.Spec.Containers[i]
		kept, started := f.regular(c, a)
		keep += kept
		start += started
	}
	if keep == 0 && start == 0 {
		// Sidecars do not keep a pod alive that has nothing else to do.
		a.StopAll = true
		a.Start = a.Start[:ephemerals]
	}
}

// regular looks at one regular container, and returns whether it goes on and whether it is started.
func (f *Facts) regular(c *v1.Container, a *Actions) (kept, started int) {
	s := f.Observed.FindContainerStatusByName(c.Name)
	if s == nil || s.State != kubecontainer.ContainerStateRunning {
		if !kubecontainer.ShouldContainerBeRestarted(klog.Background(), c, f.Pod, f.Observed) {
			return 0, 0
		}
		if s != nil && s.State == kubecontainer.ContainerStateUnknown {
			// It may be running: never have two of it.
			a.Stop = append(a.Stop, Stop{
				Container: c, ID: s.ID,
				Message: fmt.Sprintf("Container is in %q state, try killing it before restart", s.State),
			})
		}
		a.Start = append(a.Start, Start{Container: c})
		return 0, 1
	}
	restart := restarts(f.Pod)
	if c.RestartPolicy != nil {
		restart = *c.RestartPolicy != v1.ContainerRestartPolicyNever
	}
	stop := Stop{Container: c, ID: s.ID}
	switch {
	case changed(c, s):
		stop.Message = fmt.Sprintf("Container %s definition changed", c.Name)
		restart = true
	case f.Restart[c.Name] == s.ID.ID:
		stop.Message = fmt.Sprintf(resizeRestarts, c.Name)
		a.Stop, a.Start = append(a.Stop, stop), append(a.Start, Start{Container: c})
		return 0, 1
	case f.Results.Get(s.ID.ID, probe.Liveness) == probe.Failure:
		stop.Message, stop.Reason = fmt.Sprintf("Container %s failed liveness probe", c.Name), StopForLiveness
	case f.Results.Get(s.ID.ID, probe.Startup) == probe.Failure:
		stop.Message, stop.Reason = fmt.Sprintf("Container %s failed startup probe", c.Name), StopForStartup
	default:
		return 1, 0
	}
	if restart {
		stop.Message += ", will be restarted"
		a.Start = append(a.Start, Start{Container: c})
		started = 1
	}
	a.Stop = append(a.Stop, stop)
	return 0, started
}

// holdBack takes out of Start what is in back-off, and what would have come after a regular init
// container that is.
func (f *Facts) holdBack(a *Actions) {
	if f.BackOff == nil {
		return
	}
	var start []Start
	blocked := false
	for _, s := range a.Start {
		if blocked && s.Kind == Init {
			continue
		}
		ended := Exited(f.Observed, s.Container.Name)
		key := BackOffKey(s.Container)
		// An end in the future was before the clock was set back: how long ago is not known.
		if ended == nil || ended.FinishedAt.After(f.BackOff.Clock.Now()) || !f.BackOff.IsInBackOffSince(key, ended.FinishedAt) {
			start = append(start, s)
			continue
		}
		d := f.BackOff.Get(key)
		a.Wait = append(a.Wait, Wait{Container: s.Container, BackOff: d, Until: ended.FinishedAt.Add(d)})
		blocked = blocked || s.Kind == Init && !podutil.IsRestartableInitContainer(s.Container)
	}
	a.Start = start
}

// Exited returns the newest instance of a container that ended, nil if there is none.
func Exited(o *kubecontainer.PodStatus, name string) *kubecontainer.Status {
	for _, s := range o.ContainerStatuses {
		if s.Name == name && s.State == kubecontainer.ContainerStateExited {
			return s
		}
	}
	return nil
}

func (f *Facts) anyCreated() bool {
	for i := range f.Pod.Spec.Containers {
		if f.Observed.FindContainerStatusByName(f.Pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// A container that ends is started again at once the first time, then after 10 s, doubling up to
// 5 min; it starts again when it has run for 10 min.
const (
	crashFirst = 10 * time.Second
	crashMost  = 5 * time.Minute
)

// NewBackOff returns the back-off of a pod's containers that end.
func NewBackOff() *flowcontrol.Backoff { return flowcontrol.NewBackOff(crashFirst, crashMost) }

// BackOffKey names a container in its pod's back-off; a changed definition starts again.
func BackOffKey(c *v1.Container) string {
	return c.Name + "_" + strconv.FormatUint(kubecontainer.HashContainer(c), 16)
}

func changed(c *v1.Container, s *kubecontainer.Status) bool {
	return kubecontainer.HashContainer(c) != s.Hash
}

func restarts(pod *v1.Pod) bool { return pod.Spec.RestartPolicy != v1.RestartPolicyNever }

// onlyUntilSuccess says whether a container is not run again once it has succeeded.
func onlyUntilSuccess(pod *v1.Pod, c *v1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy == v1.ContainerRestartPolicyOnFailure
	}
	return pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure
}

func succeeded(s *kubecontainer.Status) bool {
	return s != nil && s.State == kubecontainer.ContainerStateExited && s.ExitCode == 0
}

// resets lists the containers that a RestartAllContainers rule does away with: those that did not
// cause it first, regular ones before init ones, and the one whose exit caused it last, since it is
// what tells a restarted kubelet that this is under way.
func resets(f Facts) []*kubecontainer.Status {
	var others, causes []*kubecontainer.Status
	for _, list := range [][]v1.Container{f.Pod.Spec.Containers, f.Pod.Spec.InitContainers} {
		for i := range list {
			c := &list[i]
			for _, s := range f.Observed.ContainerStatuses {
				if s.Name != c.Name {
					continue
				}
				if s.State == kubecontainer.ContainerStateExited && asksForReset(c, s) {
					causes = append(causes, s)
				} else {
					others = append(others, s)
				}
			}
		}
	}
	return append(others, causes...)
}

func asksForReset(c *v1.Container, s *kubecontainer.Status) bool {
	rule, matched := podutil.FindMatchingContainerRestartRule(*c, int32(s.ExitCode))
	return matched && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
}
