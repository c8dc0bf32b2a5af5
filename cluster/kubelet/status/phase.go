package status

import (
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// tally counts a pod's containers by how far they are.
type tally struct {
	pendingInit    int // init containers that have not finished
	pendingSidecar int // sidecars that have not started
	failedForGood  int // init containers that failed and are not tried again
	unknown        int
	running        int
	waiting        int // never ran
	stopped        int // regular containers that are not running now but did
	stoppedForGood int // of those, the ones that are not started again
	succeeded      int
}

// phaseOf sums a pod's containers up in one word. ended says that all have been stopped for good;
// begun that a regular container of the present sandbox has started, which keeps a pod whose
// sidecars start again from being pending again.
func phaseOf(pod *v1.Pod, s *v1.PodStatus, ended, begun bool) v1.PodPhase {
	t := count(pod, s)
	switch {
	case t.failedForGood > 0:
		return v1.PodFailed
	case t.pendingInit > 0, t.pendingSidecar > 0 && !begun, t.waiting > 0:
		return v1.PodPending
	case t.running > 0 && t.unknown == 0:
		return v1.PodRunning
	case t.running == 0 && t.stopped > 0 && t.unknown == 0:
		// A static pod's end is not reported: it is started again with the file that it is from.
		over := ended && !kubetypes.IsStaticPod(pod)
		switch {
		case !over && t.stopped != t.stoppedForGood:
			return v1.PodRunning
		case t.stopped == t.succeeded:
			return v1.PodSucceeded
		default:
			return v1.PodFailed
		}
	default:
		return v1.PodPending
	}
}

func count(pod *v1.Pod, s *v1.PodStatus) tally {
	var t tally
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		status, ok := podutil.GetContainerStatus(s.InitContainerStatuses, c.Name)
		if podutil.IsRestartableInitContainer(c) {
			t.sidecar(status, ok)
		} else {
			t.init(pod, c, status, ok)
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		status, ok := podutil.GetContainerStatus(s.ContainerStatuses, c.Name)
		t.regular(pod, c, status, ok)
	}
	return t
}

func (t *tally) init(pod *v1.Pod, c *v1.Container, s v1.ContainerStatus, ok bool) {
	end := s.State.Terminated
	if s.State.Waiting != nil {
		end = s.LastTerminationState.Terminated
	}
	switch {
	case !ok, s.State.Running != nil, end == nil:
		t.pendingInit++
	case end.ExitCode != 0 && !again(pod, c, end):
		t.failedForGood++
	}
}

func (t *tally) sidecar(s v1.ContainerStatus, ok bool) {
	switch {
	case !ok:
		t.unknown++
	case s.State.Running != nil:
		if s.Started == nil || !*s.Started {
			t.pendingSidecar++
		}
		t.running++
	case s.State.Terminated != nil:
		// An ended sidecar says nothing about the pod.
	case s.State.Waiting != nil:
		if s.LastTerminationState.Terminated == nil {
			t.pendingSidecar++
			t.waiting++
		}
	default:
		t.pendingSidecar++
		t.unknown++
	}
}

func (t *tally) regular(pod *v1.Pod, c *v1.Container, s v1.ContainerStatus, ok bool) {
	switch {
	case !ok:
		t.unknown++
	case s.State.Running != nil:
		t.running++
	case s.State.Terminated != nil:
		t.stopped++
		if !again(pod, c, s.State.Terminated) {
			t.stoppedForGood++
		}
		if s.State.Terminated.ExitCode == 0 {
			t.succeeded++
		}
	case s.State.Waiting != nil && s.LastTerminationState.Terminated != nil:
		t.stopped++
		if !again(pod, c, s.LastTerminationState.Terminated) {
			t.stoppedForGood++
		}
	case s.State.Waiting != nil:
		t.waiting++
	default:
		t.unknown++
	}
}

// again says whether a container that ended so is started again.
func again(pod *v1.Pod, c *v1.Container, end *v1.ContainerStateTerminated) bool {
	return podutil.ContainerShouldRestart(*c, pod.Spec, end.ExitCode) || end.Reason == allRestarting
}
