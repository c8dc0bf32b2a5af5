package status

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/utils/ptr"
)

// class is one of a pod's three lists of containers.
type class int

const (
	regular class = iota
	initial
	ephemeral
)

// couldNotBeLocated is the message for an unknown exit status.
const couldNotBeLocated = "The container could not be located when the pod was terminated"

func (in *Input) specs(of class) []v1.Container {
	switch of {
	case initial:
		return in.Pod.Spec.InitContainers
	case ephemeral:
		specs := make([]v1.Container, 0, len(in.Pod.Spec.EphemeralContainers))
		for i := range in.Pod.Spec.EphemeralContainers {
			specs = append(specs, v1.Container(in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
		}
		return specs
	default:
		return in.Pod.Spec.Containers
	}
}

func (in *Input) olds(of class) []v1.ContainerStatus {
	switch of {
	case initial:
		return in.Old.InitContainerStatuses
	case ephemeral:
		return in.Old.EphemeralContainerStatuses
	default:
		return in.Old.ContainerStatuses
	}
}

// containers returns the statuses of one of the pod's lists of containers, as each was last seen.
func (in *Input) containers(of class) []v1.ContainerStatus {
	specs := in.specs(of)
	if len(specs) == 0 {
		return nil
	}
	restarting := kubecontainer.ShouldAllContainersRestart(in.Pod, in.Observed, &in.Old)
	statuses := make([]v1.ContainerStatus, 0, len(specs))
	byName := map[string]*v1.ContainerStatus{}
	for i := range specs {
		c := &specs[i]
		old, known := podutil.GetContainerStatus(in.olds(of), c.Name)
		var oldPtr *v1.ContainerStatus
		if known {
			oldPtr = &old
		}
		s := in.one(c, of, oldPtr, restarting)
		statuses = append(statuses, s)
		byName[c.Name] = &statuses[len(statuses)-1]
	}
	if of == initial {
		return kubetypes.SortStatusesOfInitContainers(in.Pod, byName)
	}
	slices.SortFunc(statuses, func(a, b v1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	return statuses
}

// one returns the status of one container.
func (in *Input) one(c *v1.Container, of class, old *v1.ContainerStatus, restarting bool) v1.ContainerStatus {
	newest, before := in.instances(c.Name)
	var s v1.ContainerStatus
	if newest == nil {
		s = in.missing(c, old, restarting)
	} else {
		s = in.seen(c, newest, old, restarting)
		if before != nil {
			last := in.seen(c, before, old, restarting)
			s.LastTerminationState = last.State
		}
	}
	if of == initial {
		if newest != nil && newest.State == kubecontainer.ContainerStateExited && newest.ExitCode == 0 && !podutil.IsRestartableInitContainer(c) {
			return s
		}
		if newest == nil && s.State.Waiting != nil && !podutil.IsRestartableInitContainer(c) && in.anyRegularCreated() {
			// Containers come after the init containers: this one has run, and was removed since.
			s.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
				Reason:  "Completed",
				Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
			}}
			return s
		}
	}
	waiting, failed := in.Waiting[c.Name]
	if !failed || !kubecontainer.ShouldContainerBeRestarted(klog.Background(), c, in.Pod, in.Observed) {
		return s
	}
	if s.State.Terminated != nil {
		s.LastTerminationState = s.State
	}
	s.State = v1.ContainerState{Waiting: &waiting}
	return s
}

// instances returns the two newest instances of a container.
func (in *Input) instances(name string) (newest, before *kubecontainer.Status) {
	for _, s := range in.Observed.ContainerStatuses { // newest first
		switch {
		case s.Name != name:
		case newest == nil:
			newest = s
		case before == nil:
			before = s
		}
	}
	return newest, before
}

func (in *Input) anyRegularCreated() bool {
	return slices.ContainsFunc(in.Pod.Spec.Containers, func(c v1.Container) bool {
		return in.Observed.FindContainerStatusByName(c.Name) != nil
	})
}

// missing is the status of a container of which the runtime has nothing: it has not been made yet,
// or it has been removed and all that is left is what was reported of it.
func (in *Input) missing(c *v1.Container, old *v1.ContainerStatus, restarting bool) v1.ContainerStatus {
	s := v1.ContainerStatus{Name: c.Name, Image: c.Image, VolumeMounts: volumeMounts(c)}
	s.State.Waiting = &v1.ContainerStateWaiting{Reason: containerCreating}
	if len(in.Pod.Spec.InitContainers) > 0 {
		s.State.Waiting.Reason = podInitializing
	}
	if old == nil {
		return s
	}
	if restarting && old.State.Waiting == nil {
		const message = "The container is removed because RestartAllContainers in place"
		s.State.Waiting = &v1.ContainerStateWaiting{Reason: allRestarting, Message: message}
		s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{Reason: allRestarting, Message: message, ExitCode: 137}
		s.RestartCount = old.RestartCount + 1
		return s
	}
	if old.State.Terminated != nil {
		return *old.DeepCopy()
	}
	s.RestartCount = old.RestartCount
	s.LastTerminationState = *old.LastTerminationState.DeepCopy()
	if old.State.Running != nil && s.LastTerminationState.Terminated == nil {
		// It ran and is gone. That it ended is known, how it ended is not.
		s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
			Reason:   kubecontainer.ContainerReasonStatusUnknown,
			Message:  "The container could not be located when the pod was deleted.  The container used to be Running",
			ExitCode: 137,
		}
		if in.Pod.DeletionTimestamp == nil {
			s.RestartCount++
		}
	}
	return s
}

// seen is the status of a container instance that the runtime has.
func (in *Input) seen(c *v1.Container, k *kubecontainer.Status, old *v1.ContainerStatus, restarting bool) v1.ContainerStatus {
	s := v1.ContainerStatus{
		Name:         k.Name,
		RestartCount: int32(k.RestartCount),
		Image:        k.Image,
		ImageID:      k.ImageRef,
		ContainerID:  k.ID.String(),
		VolumeMounts: volumeMounts(c),
		User:         user(k),
	}
	if old != nil {
		s.RestartCount = max(s.RestartCount, old.RestartCount)
		switch {
		case old.ContainerID != s.ContainerID && old.State.Terminated != nil:
			s.LastTerminationState.Terminated = old.State.Terminated.DeepCopy()
		case old.LastTerminationState.Terminated != nil:
			s.LastTerminationState.Terminated = old.LastTerminationState.Terminated.DeepCopy()
		}
	}
	resources(c, k, &s)
	switch {
	case k.State == kubecontainer.ContainerStateRunning:
		s.State.Running = &v1.ContainerStateRunning{StartedAt: metav1.NewTime(k.StartedAt)}
		if old != nil && old.State.Terminated != nil && old.RestartCount >= int32(k.RestartCount) {
			s.RestartCount = old.RestartCount + 1
		}
	case k.State == kubecontainer.ContainerStateExited:
		s.State.Terminated = &v1.ContainerStateTerminated{
			ExitCode:    int32(k.ExitCode),
			Reason:      k.Reason,
			Message:     k.Message,
			StartedAt:   metav1.NewTime(k.StartedAt),
			FinishedAt:  metav1.NewTime(k.FinishedAt),
			ContainerID: s.ContainerID,
		}
	case k.State == kubecontainer.ContainerStateUnknown && old != nil && old.State.Running != nil:
		reason := kubecontainer.ContainerReasonStatusUnknown
		if restarting {
			reason = allRestarting
		}
		s.State.Terminated = &v1.ContainerStateTerminated{Reason: reason, Message: couldNotBeLocated, ExitCode: 137}
		s.RestartCount = old.RestartCount + 1
	default: // created and not started yet, or unknown
		s.State.Waiting = &v1.ContainerStateWaiting{}
	}
	return s
}

func volumeMounts(c *v1.Container) []v1.VolumeMountStatus {
	var mounts []v1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			s.RecursiveReadOnly = ptr.To(v1.RecursiveReadOnlyDisabled)
			if mode := m.RecursiveReadOnly; mode != nil && *mode != v1.RecursiveReadOnlyDisabled {
				s.RecursiveReadOnly = ptr.To(v1.RecursiveReadOnlyEnabled)
			}
		}
		mounts = append(mounts, s)
	}
	return mounts
}

func user(k *kubecontainer.Status) *v1.ContainerUser {
	if k.User == nil {
		return nil
	}
	u := &v1.ContainerUser{}
	if l := k.User.Linux; l != nil {
		u.Linux = &v1.LinuxContainerUser{UID: l.UID, GID: l.GID, SupplementalGroups: l.SupplementalGroups}
	}
	return u
}
