package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/kubelet/events"
	"k8s.io/kubernetes/pkg/kubelet/util/format"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/decide"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/resize"
)

// rounds bounds how often one step decides again after it has acted: each init container that is
// done at once takes one.
const rounds = 64

// sync brings the pod up, as far as it can be now. It returns when to look again.
func (w *worker) sync(ctx context.Context, pod *v1.Pod) (time.Time, error) {
	for range rounds {
		acted, at, err := w.round(ctx, pod)
		if err != nil || !acted || w.ending {
			return at, err
		}
		if ctx.Err() != nil {
			return at, ctx.Err()
		}
	}
	return time.Now(), nil
}

// round looks, reports, decides and acts once.
func (w *worker) round(ctx context.Context, pod *v1.Pod) (acted bool, at time.Time, err error) {
	if err := w.observe(ctx, pod, admitTimeout); err != nil {
		return false, at, err
	}
	pod = w.resize.Allocate(pod, w.observer.status)
	at = w.reporter.pastDeadline(pod)
	s := w.report(pod, false)
	if podutil.IsPodPhaseTerminal(s.Phase) {
		w.ending = true
		return false, at, nil
	}
	if err := w.prepare(ctx, pod); err != nil {
		return false, at, err
	}
	a := decide.Next(decide.Facts{
		Pod: pod, Observed: w.observer.status, Results: w.r.Probes, BackOff: w.waiting.backOff,
		ResetAll: restartingAll(&s), Restart: w.resize.Restarts(),
	})
	waited := w.waiting.keep(pod, &a)
	resized := w.resize.Resize(ctx, pod, w.observer.status, w.observer.look)
	tried := len(a.Start) > 0
	acted, err = w.carryOut(ctx, pod, &a)
	resized = w.resize.Finish(pod, w.observer.status) || resized
	if acted || tried || waited || resized || err != nil {
		w.watchProbes(pod)
		w.report(pod, false)
	}
	return acted, sooner(at, w.nextTry(&a)), err
}

// observe asks the runtime what it has of the pod. A sandbox that an earlier kubelet has made, or
// whose first attempt failed, is connected within a time; carryOut starts nothing if that fails.
func (w *worker) observe(ctx context.Context, pod *v1.Pod, patience time.Duration) error {
	if err := w.observer.all(ctx); err != nil {
		return err
	}
	w.watchProbes(pod)
	_ = w.network.connect(ctx, pod, w.observer.status, patience)
	return nil
}

// podIP returns the pod's first address, "" if it has none.
func (w *worker) podIP(pod *v1.Pod) string {
	if ips := w.r.configs.IPs(pod, w.observer.status); len(ips) > 0 {
		return ips[0]
	}
	return ""
}

func (w *worker) watchProbes(pod *v1.Pod) { w.probing.keep(pod, w.observer.status, w.podIP(pod)) }

func restartingAll(s *v1.PodStatus) bool {
	_, c := podutil.GetPodConditionFromList(s.Conditions, v1.AllContainersRestarting)
	return c != nil && c.Status == v1.ConditionTrue
}

// prepare makes what the pod's containers need and does not come from the runtime.
func (w *worker) prepare(ctx context.Context, pod *v1.Pod) error {
	if w.mounted != nil && (w.mounted == pod || sameFields(w.mounted, pod)) {
		return nil
	}
	first := w.mounted == nil
	if first {
		if err := w.makeDirs(pod); err != nil {
			w.r.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedToMakePodDataDirectories, "error making pod data directories: %v", err)
			return err
		}
		if err := w.resize.Grow(pod); err != nil {
			w.r.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedToCreatePodContainer, "unable to ensure pod container exists: %v", err)
			return fmt.Errorf("cgroup: %w", err)
		}
		var err error
		if w.whileWaiting(func() { err = w.r.Volumes.Mount(ctx, pod) }); err != nil {
			if ctx.Err() == nil {
				w.r.Recorder.Event(pod, v1.EventTypeWarning, events.FailedMountVolume, err.Error())
			}
			return fmt.Errorf("volumes: %w", err)
		}
	} else if err := w.r.Volumes.Refresh(ctx, pod); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("volumes: %w", err)
		}
		// The pod has its volumes, and Volumes tries again to bring them up to date. Meanwhile its
		// containers are looked after: an object of a volume may be gone for good.
		w.r.Log.Warn("volumes not up to date", "pod", format.Pod(pod), "err", err)
	}
	w.mounted = pod
	return nil
}

// sameFields says whether two states of a pod have the same fields that may be files in its volumes
// and change while it runs: labels, annotations and resources.
func sameFields(a, b *v1.Pod) bool {
	if !equality.Semantic.DeepEqual(a.Labels, b.Labels) || !equality.Semantic.DeepEqual(a.Annotations, b.Annotations) {
		return false
	}
	return resize.SameResources(a, b)
}

func (w *worker) makeDirs(pod *v1.Pod) error {
	dir := criconfig.Dir(w.r.RootDir, w.uid)
	for _, d := range []string{dir, filepath.Join(dir, "volumes"), filepath.Join(dir, "plugins"), w.r.Logs.Pod(pod)} {
		mode := os.FileMode(0o700)
		if d == w.r.Logs.Pod(pod) {
			mode = 0o755
		}
		if err := os.MkdirAll(d, mode); err != nil {
			return err
		}
	}
	return nil
}

// nextTry returns when the first of the containers that are held back may be tried.
func (w *worker) nextTry(a *decide.Actions) time.Time {
	var at time.Time
	for _, c := range a.Wait {
		at = sooner(at, c.Until)
	}
	if again := w.resize.Again(); again.After(time.Now()) {
		at = sooner(at, again)
	}
	return sooner(at, w.waiting.next())
}

func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// carryOut does what was decided. It returns whether the runtime was told to do anything.
func (w *worker) carryOut(ctx context.Context, pod *v1.Pod, a *decide.Actions) (acted bool, err error) {
	if acted, err = w.stopSome(pod, a); err != nil {
		return acted, err
	}
	if ctx.Err() != nil {
		return acted, ctx.Err() // the pod is to end: what was stopped does not start again
	}
	if acted {
		if err := w.observe(ctx, pod, admitTimeout); err != nil {
			return acted, err
		}
	}
	if !a.Sandbox && w.network.err != nil {
		return acted, w.network.err
	}
	if !a.Sandbox && len(a.Start) == 0 {
		return acted, nil
	}
	config, err := w.r.configs.Sandbox(ctx, pod, a.Attempt)
	if err != nil {
		return acted, fmt.Errorf("GeneratePodSandboxConfig for pod %q failed: %w", format.Pod(pod), err)
	}
	if a.Sandbox {
		acted = true
		if w.waiting.forgive() {
			w.Wake()
		}
		if err := w.makeSandbox(ctx, pod, a, config); err != nil {
			return acted, err
		}
		w.report(pod, false)
	}
	started, err := w.startSome(ctx, pod, a, config)
	return acted || started, err
}

// stopSome stops what is to end, and removes what is to start from scratch.
func (w *worker) stopSome(pod *v1.Pod, a *decide.Actions) (acted bool, err error) {
	if a.StopAll {
		if acted, err = w.stopAll(pod, a); err != nil {
			return acted, err
		}
	}
	for _, s := range a.Stop {
		acted = true
		if err := w.stopper.Container(w.target(pod, s.Container, s.ID.ID), s.Message, s.Reason); err != nil {
			return acted, err
		}
	}
	for _, s := range a.Reset {
		acted = true
		if err := w.reset(pod, s); err != nil {
			return acted, err
		}
	}
	return acted, nil
}

// startSome starts containers in the pod's sandbox, in order, and removes old instances.
func (w *worker) startSome(ctx context.Context, pod *v1.Pod, a *decide.Actions,
	sandbox *runtimeapi.PodSandboxConfig,
) (started bool, err error) {
	for i, s := range a.Start {
		ok := w.startOne(ctx, pod, a, sandbox, s)
		started = started || ok
		if ctx.Err() != nil {
			return started, ctx.Err()
		}
		if !ok && s.Kind == decide.Init && !podutil.IsRestartableInitContainer(s.Container) {
			break
		}
		if ok && i+1 < len(a.Start) {
			w.Wake() // to be reported, if the next one takes long to pull
		}
	}
	w.prune(ctx)
	return started, nil
}

// makeSandbox has the runtime make the pod's sandbox.
func (w *worker) makeSandbox(ctx context.Context, pod *v1.Pod, a *decide.Actions, config *runtimeapi.PodSandboxConfig) error {
	if w.r.NoAddresses != nil && !pod.Spec.HostNetwork {
		if err := w.r.NoAddresses(); err != nil { // the runtime could give an address of another node's range
			w.r.Recorder.Eventf(pod, v1.EventTypeWarning, events.NetworkNotReady, "network is not ready: %v", err)
			return err
		}
	}
	if a.SandboxID != "" {
		w.r.Recorder.Event(pod, v1.EventTypeNormal, events.SandboxChanged, "Pod sandbox changed, it will be killed and re-created.")
	}
	failed := func(reason, format string, err error) error {
		if ctx.Err() == nil {
			w.r.Recorder.Eventf(pod, v1.EventTypeWarning, reason, format, err)
		}
		return err
	}
	handler, err := w.r.RuntimeHandler(pod.Spec.RuntimeClassName)
	if err != nil {
		return failed(events.FailedCreatePodSandBox, "Failed to create pod sandbox: %v", err)
	}
	call, cancel := detached(sandboxTimeout)
	defer cancel()
	made, err := w.r.CRI.Runtime.RunPodSandbox(call, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return failed(events.FailedCreatePodSandBox, "Failed to create pod sandbox: %v", err)
	}
	resp, err := w.r.CRI.Runtime.PodSandboxStatus(call, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: made.PodSandboxId})
	if err != nil {
		return failed(events.FailedStatusPodSandBox, "Unable to get pod sandbox status: %v", err)
	}
	if resp.Status == nil {
		return errors.New("pod sandbox status is nil")
	}
	a.SandboxID = made.PodSandboxId
	w.observer.sandbox(resp.Status)
	if err := w.network.connect(ctx, pod, w.observer.status, admitTimeout); err != nil {
		return failed(events.FailedCreatePodSandBox, "Failed to create pod sandbox: %v", err)
	}
	return nil
}

// removeDir removes a pod's directory, unless something is still mounted in it: then it would be
// the volume's content that is removed.
func removeDir(dir string) error {
	if err := rmtree.Unmounted(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}
