// Package status computes and writes the status of pods.
//
// Generate is a pure function from a pod, what the runtime has of it, and what is known besides
// (why a container waits, what probes answered) to a v1.PodStatus with upstream's phases,
// conditions and reasons. A Writer brings such statuses to the API: the newest per pod, one write
// at a time, and at last deletes the object of a pod that was deleted and is gone from the node.
package status

import (
	"cmp"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubestatus "k8s.io/kubernetes/pkg/kubelet/status"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	podconditions "k8s.io/kubernetes/pkg/util/pod"

	"github.com/coracle-project/coracle/cluster/kubelet/probe"
)

// Input is all that a pod's status follows from.
type Input struct {
	Pod      *v1.Pod
	Observed *kubecontainer.PodStatus
	// Old is the status generated before, or the API's if there is none.
	Old v1.PodStatus
	// Waiting says, by container name, why a container could not be started.
	Waiting map[string]v1.ContainerStateWaiting
	// Results are the probes' answers.
	Results interface {
		Get(id string, kind probe.Kind) probe.Result
	}
	HostIPs []string
	// Resize are the conditions of a resize that is under way.
	Resize []v1.PodCondition
	// Ended is set when all containers have been stopped for good.
	Ended bool
	// Evict is set when the node ends the pod for a reason of its own.
	Evict *Eviction
	Now   time.Time
}

// Eviction is why the node ends a pod.
type Eviction struct {
	Reason, Message string
	// Disruption is set when not the pod is to blame but the node, which a condition then tells
	// those who count a pod's failures.
	Disruption bool
	// Disrupted is the message of that condition, Message if empty.
	Disrupted string
}

// Reasons of waiting containers that have not failed.
const (
	containerCreating = "ContainerCreating"
	podInitializing   = "PodInitializing"
	allRestarting     = "RestartingAllContainers"
)

// Generate returns the pod's status. It changes nothing that it is given.
func Generate(in Input) v1.PodStatus {
	pod, old := in.Pod, in.Old
	s := v1.PodStatus{
		ObservedGeneration: max(pod.Generation, old.ObservedGeneration),
		QOSClass:           v1qos.GetPodQOS(pod),
		NominatedNodeName:  pod.Status.NominatedNodeName,
		StartTime:          old.StartTime,
	}
	for _, ip := range ipOrder(in.Observed.IPs, in.HostIPs) {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
	s.ContainerStatuses = in.containers(regular)
	s.InitContainerStatuses = in.containers(initial)
	s.EphemeralContainerStatuses = in.containers(ephemeral)
	podResources(pod, &s)
	in.ready(&s)
	s.Phase = phaseOf(pod, &s, in.Ended, kubecontainer.HasAnyActiveRegularContainerStarted(&pod.Spec, in.Observed))
	keepTerminal(&s, pod, &old)
	if in.Evict != nil {
		s.Phase, s.Reason, s.Message = v1.PodFailed, in.Evict.Reason, in.Evict.Message
		if terminal(pod.Status.Phase) {
			s.Phase = pod.Status.Phase
		}
	}
	in.conditions(&s)
	hostAddresses(pod, &s, in.HostIPs)
	finish(pod, &s, &old, in.Now)
	return s
}

// Rejected is the status of a pod that the node does not admit.
func Rejected(pod *v1.Pod, reason, message string, now time.Time) v1.PodStatus {
	s := v1.PodStatus{
		ObservedGeneration: pod.Generation,
		QOSClass:           v1qos.GetPodQOS(pod),
		Phase:              v1.PodFailed,
		Reason:             reason,
		Message:            "Pod was rejected: " + message,
	}
	finish(pod, &s, &pod.Status, now)
	return s
}

// keepTerminal sees to it that a pod which has ended stays ended, with the reason it was given.
func keepTerminal(s *v1.PodStatus, pod *v1.Pod, old *v1.PodStatus) {
	if !terminal(s.Phase) {
		switch {
		case terminal(old.Phase):
			s.Phase = old.Phase
		case terminal(pod.Status.Phase):
			s.Phase = pod.Status.Phase
		}
	}
	if terminal(pod.Status.Phase) {
		s.Phase = pod.Status.Phase
	}
	if s.Phase != old.Phase {
		return
	}
	s.Reason, s.Message = old.Reason, old.Message
	if s.Reason == "" {
		s.Reason = pod.Status.Reason
	}
	if s.Message == "" {
		s.Message = pod.Status.Message
	}
}

func terminal(p v1.PodPhase) bool { return p == v1.PodFailed || p == v1.PodSucceeded }

// conditions sets the kubelet's conditions and keeps those of others.
func (in *Input) conditions(s *v1.PodStatus) {
	pod, old := in.Pod, &in.Old
	for _, c := range pod.Status.Conditions {
		if !kubetypes.PodConditionByKubelet(c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	if _, c := podutil.GetPodConditionFromList(old.Conditions, v1.DisruptionTarget); c != nil {
		s.Conditions = podconditions.ReplaceOrAppendPodCondition(s.Conditions, c)
	} else if in.Evict != nil && in.Evict.Disruption {
		s.Conditions = podconditions.ReplaceOrAppendPodCondition(s.Conditions, &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
			Message:            cmp.Or(in.Evict.Disrupted, in.Evict.Message),
			ObservedGeneration: podutil.CalculatePodConditionObservedGeneration(old, pod.Generation, v1.DisruptionTarget),
			LastTransitionTime: metav1.NewTime(in.Now),
		})
	}
	all := make([]v1.ContainerStatus, 0, len(s.InitContainerStatuses)+len(s.ContainerStatuses))
	all = append(append(all, s.InitContainerStatuses...), s.ContainerStatuses...)
	s.Conditions = append(s.Conditions,
		kubestatus.GeneratePodReadyToStartContainersCondition(pod, old, in.Observed),
		kubestatus.GeneratePodInitializedCondition(pod, old, all, s.Phase))
	// Ready looks at the conditions that readiness gates name, which are among those kept above.
	s.Conditions = append(s.Conditions,
		kubestatus.GeneratePodReadyCondition(pod, old, s.Conditions, all, s.Phase),
		kubestatus.GenerateContainersReadyCondition(pod, old, all, s.Phase),
		v1.PodCondition{
			Type:               v1.PodScheduled,
			Status:             v1.ConditionTrue,
			ObservedGeneration: podutil.CalculatePodConditionObservedGeneration(old, pod.Generation, v1.PodScheduled),
		})
	if !terminal(s.Phase) {
		s.Conditions = append(s.Conditions, in.Resize...)
	}
	if podutil.AllContainersCouldRestart(&pod.Spec) {
		s.Conditions = append(s.Conditions, kubestatus.GenerateAllContainersRestartingCondition(pod, in.Observed, old, s.Phase))
	}
}

// ready fills in what probes decide: started and ready of each container.
func (in *Input) ready(s *v1.PodStatus) {
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		in.started(c, kubecontainer.GetContainerSpec(in.Pod, c.Name))
	}
	for i := range s.InitContainerStatuses {
		c := &s.InitContainerStatuses[i]
		spec := kubecontainer.GetContainerSpec(in.Pod, c.Name)
		in.started(c, spec)
		if spec != nil && !podutil.IsRestartableInitContainer(spec) {
			c.Ready = c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
		}
	}
}

func (in *Input) started(c *v1.ContainerStatus, spec *v1.Container) {
	running := c.State.Running != nil
	_, id, _ := strings.Cut(c.ContainerID, "://")
	answered := func(kind probe.Kind) bool { return in.Results != nil && in.Results.Get(id, kind) == probe.Success }
	started := running && (spec == nil || spec.StartupProbe == nil || answered(probe.Startup))
	c.Started = &started
	c.Ready = started && (spec == nil || spec.ReadinessProbe == nil || answered(probe.Readiness))
}

// hostAddresses sets the node's addresses, which are a host-network pod's own.
func hostAddresses(pod *v1.Pod, s *v1.PodStatus, ips []string) {
	if len(ips) == 0 {
		return
	}
	s.HostIP = ips[0]
	for _, ip := range ips {
		s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
	}
	if pod.Spec.HostNetwork && s.PodIP == "" {
		s.PodIP = ips[0]
		for _, ip := range ips {
			s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
		}
	}
}

// finish sets times (whole seconds, as the API keeps them) and bounds messages.
func finish(pod *v1.Pod, s, old *v1.PodStatus, now time.Time) {
	if s.StartTime == nil || s.StartTime.IsZero() {
		if old.StartTime != nil && !old.StartTime.IsZero() {
			s.StartTime = old.StartTime.DeepCopy()
		} else {
			s.StartTime = &metav1.Time{Time: now}
		}
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if !kubetypes.PodConditionByKubelet(c.Type) || c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			continue // those have times of their own
		}
		c.LastTransitionTime = metav1.NewTime(now)
		if _, was := podutil.GetPodCondition(old, c.Type); was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	normalize(pod, s)
}
