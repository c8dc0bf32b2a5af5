package pod

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/decide"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/stop"
)

// end stops all of a pod for good, frees what it used and reports how it ended.
func (w *worker) end() error {
	ctx, cancel := context.WithCancel(w.r.ctx)
	defer cancel()
	pod := w.current()
	if err := w.observe(ctx, pod, endingAdmitTimeout); err != nil {
		return err
	}
	if w.reporter.settled(pod, w.observer.status) {
		// It ended before the kubelet was started, or never began: what was reported of it is kept.
		w.reporter.status, w.reporter.written = pod.Status, true
	} else {
		w.report(pod, false)
		w.r.Probes.Quiet(w.uid)
		if err := w.stopper.Pod(pod, w.observer.status, w.podIP(pod)); err != nil {
			if w.r.ctx.Err() != nil {
				return err
			}
			w.r.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedToKillPod, "error killing pod: %v", err)
			w.tellStopped(ctx)
			return err
		}
		ips := w.observer.status.IPs
		if err := w.observe(ctx, pod, endingAdmitTimeout); err != nil {
			return err
		}
		if len(w.observer.status.IPs) == 0 {
			status := *w.observer.status
			status.IPs = ips // what the pod had stays in its status
			w.observer.status = &status
		}
		for _, s := range w.observer.status.ContainerStatuses {
			if s.State == kubecontainer.ContainerStateRunning {
				return fmt.Errorf("container %s still runs after it was stopped", s.ID)
			}
		}
		pod = w.current()
		w.report(pod, true)
	}
	w.network.disconnect()
	w.r.Probes.Keep(w.uid)
	if err := w.r.Volumes.Unmount(ctx, w.uid); err != nil {
		return fmt.Errorf("volumes: %w", err)
	}
	// Something still runs in a cgroup that cannot be removed, so the pod has not ended.
	if err := w.r.Cgroups.Remove(w.uid); err != nil {
		w.r.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedToKillPod, "error killing pod: %v", err)
		return err
	}
	w.reporter.settle(pod)
	w.reporter.publish(pod, w.observer.status, true, true)
	return nil
}

// reportWaiting reports the status while the worker's goroutine waits, as for the grace of
// containers: Services send traffic to the pod as long as it is ready. It runs outside of what
// guarded sees.
func (w *worker) reportWaiting() {
	defer func() {
		if r := recover(); r != nil {
			w.r.Log.Error("panic in the report of a pod whose worker waits", "uid", w.uid, "panic", r, "stack", string(debug.Stack()))
		}
	}()
	w.report(w.current(), false)
}

// moment is how long a wait may take before anything is reported meanwhile. A container that is
// replaced, for instance by one of another image, has usually been started again by then: the pod
// stays ready, as with upstream's kubelet, and its Services keep their endpoints.
const moment = 200 * time.Millisecond

// whileWaiting calls wait, which may take long and changes nothing that is reported of the pod. It
// reports what the probes find meanwhile. What woke the worker is looked at again afterwards.
func (w *worker) whileWaiting(wait func()) {
	stop := w.Meanwhile(moment, w.reportWaiting)
	wait()
	stop()
}

// tellStopped lets go of the pod's volumes if only its sandbox is left, which writes to none.
func (w *worker) tellStopped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if o, err := w.r.CRI.Pod(ctx, w.uid); err == nil && len(stop.Running(o)) == 0 {
		w.r.Volumes.Stopped(w.uid)
	}
}

// stopAll ends all containers and the sandbox of a pod that goes on, or has nothing left to do.
func (w *worker) stopAll(pod *v1.Pod, a *decide.Actions) (acted bool, err error) {
	acted = len(stop.Running(w.observer.status)) > 0
	for _, s := range w.observer.status.SandboxStatuses {
		acted = acted || s.State == runtimeapi.PodSandboxState_SANDBOX_READY
	}
	if acted {
		if err := w.stopper.Pod(pod, w.observer.status, w.podIP(pod)); err != nil {
			return acted, err
		}
	}
	if !a.Sandbox {
		return acted, nil
	}
	// Init containers run again in the new sandbox: their old instances would look as if they had.
	for i := range pod.Spec.InitContainers {
		for _, s := range w.observer.status.ContainerStatuses {
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

// reset does away with one container of a pod whose containers all start again.
func (w *worker) reset(pod *v1.Pod, s *kubecontainer.Status) error {
	if s.State == kubecontainer.ContainerStateRunning {
		if c := kubecontainer.GetContainerSpec(pod, s.Name); c != nil {
			w.event(pod, c, v1.EventTypeNormal, events.KillingContainer, "killing")
		}
		if err := w.stopper.Now(s.ID.ID); err != nil {
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
	pod, _ := w.Object()
	if err := w.r.links.Remove(w.r.Logs, pod); err != nil {
		w.r.Log.Warn("remove a pod's logs", "err", err)
	}
	if err := removeDir(criconfig.Dir(w.r.RootDir, w.uid)); err != nil {
		return err
	}
	return nil
}
