package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/events"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/decide"
)

// leastGrace is what every container gets to end by itself, however impatient its owner is.
const leastGrace = 2 * time.Second

// evictionGrace is what the containers of an evicted pod get: what they take is wanted now.
const evictionGrace = time.Second

// end stops all of a pod for good, frees what it used and reports how it ended.
func (w *worker) end() error {
	ctx, cancel := context.WithCancel(w.r.ctx)
	defer cancel()
	pod := w.current()
	if err := w.observe(ctx, pod, endingAdmitTimeout); err != nil {
		return err
	}
	if w.settled(pod) {
		// It ended before the kubelet was started, or never began: what was reported of it stands.
		w.status, w.written = pod.Status, true
	} else {
		w.report(pod, false)
		w.r.Probes.Quiet(w.uid)
		if err := w.stopEverything(pod); err != nil {
			w.r.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedToKillPod, "error killing pod: %v", err)
			w.tellStopped(ctx)
			return err
		}
		ips := w.observed.IPs
		if err := w.observe(ctx, pod, endingAdmitTimeout); err != nil {
			return err
		}
		if len(w.observed.IPs) == 0 {
			w.observed.IPs = ips // what the pod had stays in its status
		}
		for _, s := range w.observed.ContainerStatuses {
			if s.State == kubecontainer.ContainerStateRunning {
				return fmt.Errorf("container %s still runs after it was stopped", s.ID)
			}
		}
		pod = w.current()
		w.report(pod, true)
	}
	w.disconnect()
	w.r.Probes.Keep(w.uid)
	if err := w.r.Volumes.Unmount(ctx, w.uid); err != nil {
		return fmt.Errorf("volumes: %w", err)
	}
	// Something still runs in a cgroup that cannot be removed, so the pod has not ended.
	if err := w.r.Cgroups.Remove(w.uid); err != nil {
		w.r.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedToKillPod, "error killing pod: %v", err)
		return err
	}
	w.settle(pod)
	w.publish(pod, true, true)
	return nil
}

// tellStopped lets go of the pod's volumes if only its sandbox is left, which writes to none.
func (w *worker) tellStopped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if o, err := w.r.CRI.Pod(ctx, w.uid); err == nil && len(running(o)) == 0 {
		w.r.Volumes.Stopped(w.uid)
	}
}

// settled says whether a pod's end was reported already and the runtime runs nothing of it.
func (w *worker) settled(pod *v1.Pod) bool {
	if w.written || !podutil.IsPodPhaseTerminal(pod.Status.Phase) {
		return false
	}
	for _, s := range w.observed.ContainerStatuses {
		if s.State != kubecontainer.ContainerStateExited {
			return false
		}
	}
	for _, s := range w.observed.SandboxStatuses {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return false
		}
	}
	return true
}

// settle gives a pod that is gone from the node a final phase, and every container that once ran a
// final state.
func (w *worker) settle(pod *v1.Pod) {
	s := w.status.DeepCopy()
	lost := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason:   kubecontainer.ContainerReasonStatusUnknown,
		Message:  "The container could not be located when the pod was terminated",
		ExitCode: 137,
	}}
	if podutil.IsPodPhaseTerminal(pod.Status.Phase) && len(s.ContainerStatuses) == 0 {
		w.status = *s
		return // rejected, or reported by an earlier process
	}
	if begun(pod, s) {
		for i := range s.ContainerStatuses {
			if c := &s.ContainerStatuses[i]; c.State.Terminated == nil {
				c.State = lost
			}
		}
	}
	for i := range tried(s.InitContainerStatuses) {
		if c := &s.InitContainerStatuses[i]; c.State.Terminated == nil {
			c.State = lost
		}
	}
	if !podutil.IsPodPhaseTerminal(s.Phase) && !kubetypes.IsStaticPod(pod) {
		s.Phase = v1.PodFailed
	}
	w.status = *s
}

// begun says whether a pod's init containers, if it has any, have been done.
func begun(pod *v1.Pod, s *v1.PodStatus) bool {
	if len(pod.Spec.InitContainers) == 0 {
		return true
	}
	for _, c := range s.ContainerStatuses {
		if c.LastTerminationState.Terminated != nil || c.State.Waiting == nil {
			return true
		}
	}
	if len(s.InitContainerStatuses) == 0 {
		return false
	}
	last := s.InitContainerStatuses[len(s.InitContainerStatuses)-1]
	spec := kubecontainer.GetContainerSpec(pod, last.Name)
	if spec != nil && podutil.IsRestartableInitContainer(spec) {
		return last.State.Running != nil && last.Started != nil && *last.Started
	}
	done := func(t *v1.ContainerStateTerminated) bool { return t != nil && t.ExitCode == 0 }
	return done(last.State.Terminated) || done(last.LastTerminationState.Terminated)
}

// tried returns the init containers up to the last that was ever run, at least the first.
func tried(all []v1.ContainerStatus) []v1.ContainerStatus {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].State.Waiting == nil || all[i].LastTerminationState.Terminated != nil {
			return all[:i+1]
		}
	}
	return all[:min(len(all), 1)]
}

// stopAll ends all containers and the sandbox of a pod that goes on, or has nothing left to do.
func (w *worker) stopAll(pod *v1.Pod, a *decide.Actions) (acted bool, err error) {
	acted = len(running(w.observed)) > 0
	for _, s := range w.observed.SandboxStatuses {
		acted = acted || s.State == runtimeapi.PodSandboxState_SANDBOX_READY
	}
	if acted {
		if err := w.stopEverything(pod); err != nil {
			return acted, err
		}
	}
	if !a.Sandbox {
		return acted, nil
	}
	// Init containers run again in the new sandbox: their old instances would look as if they had.
	for i := range pod.Spec.InitContainers {
		for _, s := range w.observed.ContainerStatuses {
			if s.Name != pod.Spec.InitContainers[i].Name {
				continue
			}
			acted = true
			if err := w.removeContainer(w.r.ctx, s, false); err != nil {
				return acted, err
			}
		}
	}
	return acted, nil
}

func running(o *kubecontainer.PodStatus) []*kubecontainer.Status {
	var all []*kubecontainer.Status
	for _, s := range o.ContainerStatuses {
		if s.State == kubecontainer.ContainerStateRunning || s.State == kubecontainer.ContainerStateUnknown {
			all = append(all, s)
		}
	}
	return all
}

// stopEverything stops all containers together, each within its grace, sidecars after those that
// need them, and then the sandboxes. A grace that is shortened meanwhile takes effect at once.
func (w *worker) stopEverything(pod *v1.Pod) error {
	alive := running(w.observed)
	order := newOrder(pod, alive)
	errs := make([]error, len(alive))
	hurry := newHurry(w, pod)
	defer hurry.stop()
	var wg sync.WaitGroup
	for i, s := range alive {
		spec := kubecontainer.GetContainerSpec(pod, s.Name)
		if spec == nil {
			spec = &v1.Container{Name: s.Name} // taken out of the pod, or of a pod that is only remembered
		}
		wg.Go(func() {
			errs[i] = w.stopContainer(pod, spec, s.ID.ID, "", "", order, hurry)
			order.ended(s.Name)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	ctx, cancel := detached(callTimeout)
	defer cancel()
	for _, s := range w.observed.SandboxStatuses {
		if w.stopped[s.Id] {
			continue
		}
		_, err := w.r.CRI.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id})
		if err != nil && !cri.NotFound(err) {
			return fmt.Errorf("stop sandbox %s: %w", s.Id, err)
		}
		w.stopped[s.Id] = true
	}
	return nil
}

// stopContainer runs the container's preStop hook, waits for its turn and stops it.
func (w *worker) stopContainer(pod *v1.Pod, c *v1.Container, id, message string, reason decide.StopReason, order *order, hurry *hurry) error {
	if message == "" {
		message = "Stopping container " + c.Name
	}
	w.event(pod, c, v1.EventTypeNormal, events.KillingContainer, "%s", message)
	grace := graceOf(pod, c, reason)
	if w.eviction() != nil {
		grace = min(grace, evictionGrace)
	}
	deadline := time.Now().Add(grace)
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && time.Now().Before(deadline) {
		ctx, cancel := hurry.until(deadline)
		if _, err := w.hook(ctx, pod, c, id, c.Lifecycle.PreStop); err != nil && ctx.Err() == nil {
			w.event(pod, c, v1.EventTypeWarning, events.FailedPreStopHook, "PreStopHook failed")
		}
		cancel()
	}
	if order != nil {
		ctx, cancel := hurry.until(deadline)
		order.wait(ctx, c.Name)
		cancel()
	}
	return w.stopNow(id, deadline, hurry)
}

// stopNow has the runtime stop a container by a deadline, which hurry may bring forward.
func (w *worker) stopNow(id string, deadline time.Time, hurry *hurry) error {
	stop := func(by time.Time) error {
		left := max(time.Until(by), leastGrace)
		ctx, cancel := detached(left + callTimeout)
		defer cancel()
		_, err := w.r.CRI.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{
			ContainerId: id, Timeout: int64((left + time.Second - 1) / time.Second),
		})
		if err != nil && !cri.NotFound(err) {
			return fmt.Errorf("stop container %s: %w", id, err)
		}
		return nil
	}
	first := make(chan error, 1)
	again := hurry.again()
	deadline = hurry.atMost(deadline)
	go func(by time.Time) { first <- stop(by) }(deadline)
	for {
		select {
		case err := <-first:
			return err
		case <-again:
		}
		again = hurry.again()
		if by := hurry.atMost(deadline); by.Before(deadline) {
			deadline = by
			if err := stop(by); err != nil {
				return err
			}
		}
	}
}

// graceOf returns how long a container may take to end, its hook included.
func graceOf(pod *v1.Pod, c *v1.Container, reason decide.StopReason) time.Duration {
	seconds := func(s *int64) time.Duration { return time.Duration(*s) * time.Second }
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		return max(seconds(pod.DeletionGracePeriodSeconds), time.Second)
	case pod.Spec.TerminationGracePeriodSeconds == nil:
		return leastGrace
	case reason == decide.StopForStartup && c.StartupProbe != nil && c.StartupProbe.TerminationGracePeriodSeconds != nil:
		return seconds(c.StartupProbe.TerminationGracePeriodSeconds)
	case reason == decide.StopForLiveness && c.LivenessProbe != nil && c.LivenessProbe.TerminationGracePeriodSeconds != nil:
		return seconds(c.LivenessProbe.TerminationGracePeriodSeconds)
	default:
		return seconds(pod.Spec.TerminationGracePeriodSeconds)
	}
}

// reset does away with one container of a pod whose containers all start again.
func (w *worker) reset(pod *v1.Pod, s *kubecontainer.Status) error {
	if s.State == kubecontainer.ContainerStateRunning {
		if c := kubecontainer.GetContainerSpec(pod, s.Name); c != nil {
			w.event(pod, c, v1.EventTypeNormal, events.KillingContainer, "killing")
		}
		if err := w.stopNow(s.ID.ID, time.Now(), nil); err != nil {
			return err
		}
	}
	return w.removeContainer(w.r.ctx, s, true)
}

// clean removes all that is left of a pod whose object is gone.
func (w *worker) clean() error {
	ctx, cancel := detached(callTimeout)
	defer cancel()
	o, err := w.r.CRI.Pod(ctx, w.uid)
	if err != nil {
		return err
	}
	for _, s := range o.ContainerStatuses {
		if err := w.removeContainer(ctx, s, false); err != nil {
			return err
		}
	}
	for _, s := range o.SandboxStatuses {
		_, err := w.r.CRI.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id})
		if err != nil && !cri.NotFound(err) {
			return fmt.Errorf("remove sandbox %s: %w", s.Id, err)
		}
	}
	if err := w.r.Logs.Remove(w.uid); err != nil {
		slog.Warn("remove a pod's logs", "err", err)
	}
	if err := removeDir(criconfig.Dir(w.r.RootDir, w.uid)); err != nil {
		return err
	}
	return nil
}
