package pod

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/images"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/decide"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/hook"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
	"github.com/coracle-project/coracle/cluster/kubelet/ref"
)

// Calls that change something go on when the pod's end is asked for meanwhile: what they made must
// be known. These bound them.
const (
	sandboxTimeout = 4 * time.Minute
	callTimeout    = 2 * time.Minute
)

func detached(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// The reasons of waiting containers that could not be made or started.
const (
	createConfigError = "CreateContainerConfigError"
	createError       = "CreateContainerError"
	runError          = "RunContainerError"
	postStartError    = "PostStartHookError"
)

// refusal is why a container is not running: its waiting reason and message.
type refusal struct {
	reason, message string
	until           time.Time // zero: as for any failed attempt
	unstarted       bool      // the runtime would not make or start it
}

func (r *refusal) Error() string { return r.reason + ": " + r.message }

// startOne makes and starts a container and runs its postStart hook, and notes what went wrong. It
// returns whether the container runs.
func (w *worker) startOne(ctx context.Context, pod *v1.Pod, a *decide.Actions, sandbox *runtimeapi.PodSandboxConfig, s decide.Start) bool {
	c := s.Container
	if ended := decide.Exited(w.observer.status, c.Name); ended != nil {
		w.waiting.backOff.Next(decide.BackOffKey(c), ended.FinishedAt)
	}
	err := w.start(ctx, pod, a, sandbox, s)
	if ctx.Err() != nil && err != nil {
		return false // the pod is being ended: that is not the container's failure
	}
	if err == nil {
		delete(w.waiting.all, c.Name)
		return true
	}
	w.waiting.failed(c, err)
	w.r.Log.Info("container could not be started", "pod", pod.Namespace+"/"+pod.Name, "container", c.Name, "err", err)
	return false
}

func (w *worker) start(ctx context.Context, pod *v1.Pod, a *decide.Actions, sandbox *runtimeapi.PodSandboxConfig, s decide.Start) error {
	c := s.Container
	fail := func(reason string, err error) *refusal {
		message := cri.Message(err)
		w.event(pod, c, v1.EventTypeWarning, events.FailedToCreateContainer, "Error: %s", message)
		return &refusal{reason: reason, message: message}
	}
	handler, err := w.r.RuntimeHandler(pod.Spec.RuntimeClassName)
	if err != nil {
		return fail(createConfigError, err)
	}
	image, err := w.image(ctx, pod, c, sandbox, handler)
	if err != nil {
		return w.noImage(ctx, pod, c, err)
	}
	volumes, err := w.imageVolumes(ctx, pod, c, sandbox, handler)
	if err != nil {
		return err
	}
	config, err := w.r.configs.Container(ctx, criconfig.Request{
		Pod: pod, Observed: w.observer.status, Start: s, Image: image, Images: volumes,
	})
	if err != nil {
		return fail(createConfigError, err)
	}
	call, cancel := detached(callTimeout)
	defer cancel()
	made, err := w.r.CRI.Runtime.CreateContainer(call, &runtimeapi.CreateContainerRequest{
		PodSandboxId: a.SandboxID, Config: config, SandboxConfig: sandbox,
	})
	if err != nil {
		refused := fail(createError, err)
		refused.unstarted = true
		return refused
	}
	w.event(pod, c, v1.EventTypeNormal, events.CreatedContainer, "Container created")
	_, err = w.r.CRI.Runtime.StartContainer(call, &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
	if err != nil {
		w.observer.look(call, made.ContainerId)
		refused := fail(runError, err)
		refused.unstarted = true
		return refused
	}
	w.event(pod, c, v1.EventTypeNormal, events.StartedContainer, "Container started")
	// A container does not count as running before its postStart hook has ended.
	defer func() {
		call, cancel := detached(callTimeout)
		defer cancel()
		w.observer.look(call, made.ContainerId)
	}()
	w.r.links.Link(w.r.Logs, pod, c.Name, made.ContainerId, filepath.Join(sandbox.LogDirectory, config.LogPath))
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	var message string
	w.whileWaiting(func() { message, err = w.r.hooks.Run(ctx, w.target(pod, c, made.ContainerId), c.Lifecycle.PostStart) })
	if err != nil {
		if ctx.Err() != nil {
			return err // the pod is being ended
		}
		// The message may hold secrets, so it is not in the event, which more people can read.
		w.event(pod, c, v1.EventTypeWarning, events.FailedPostStartHook, "PostStartHook failed")
		if err := w.stopper.Container(w.target(pod, c, made.ContainerId), "FailedPostStartHook", ""); err != nil {
			w.r.Log.Warn("stop a container whose postStart hook failed", "container", made.ContainerId, "err", err)
		}
		return &refusal{reason: postStartError, message: message}
	}
	return nil
}

// image sees to it that the container's image is on the node, and returns its id.
func (w *worker) image(ctx context.Context, pod *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig, handler string,
) (id string, err error) {
	w.whileWaiting(func() { id, err = w.r.Images.Ensure(ctx, pod, c, sandbox, handler) })
	return id, err
}

// noImage reports that an image is missing.
func (w *worker) noImage(ctx context.Context, pod *v1.Pod, c *v1.Container, err error) error {
	var missing *images.Failure
	if !errors.As(err, &missing) {
		missing = &images.Failure{Reason: createError, Message: err.Error()}
	}
	if ctx.Err() == nil {
		w.event(pod, c, v1.EventTypeWarning, events.FailedToCreateContainer, "Error: %s", missing.Reason)
	}
	return &refusal{reason: missing.Reason, message: missing.Message, until: missing.Until}
}

// imageVolumes sees to it that the images which the container mounts are on the node, and returns
// what the runtime is to mount by the volumes' names.
func (w *worker) imageVolumes(ctx context.Context, pod *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig,
	handler string,
) (map[string]*runtimeapi.ImageSpec, error) {
	var specs map[string]*runtimeapi.ImageSpec
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Image == nil || !slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == v.Name }) {
			continue
		}
		as := *c // its events are the container's
		as.Image, as.ImagePullPolicy = v.Image.Reference, v.Image.PullPolicy
		id, err := w.image(ctx, pod, &as, sandbox, handler)
		if err != nil {
			return nil, w.noImage(ctx, pod, c, err)
		}
		if specs == nil {
			specs = map[string]*runtimeapi.ImageSpec{}
		}
		specs[v.Name] = &runtimeapi.ImageSpec{
			Image: id, UserSpecifiedImage: v.Image.Reference, RuntimeHandler: handler, Annotations: pod.Annotations,
		}
	}
	return specs, nil
}

// prune removes instances of containers that no one needs any more: of each container the newest
// and, for its last state and log, the one before are kept.
func (w *worker) prune(ctx context.Context) {
	seen := map[string]int{}
	var kept []*kubecontainer.Status
	for _, s := range w.observer.status.ContainerStatuses {
		seen[s.Name]++
		if seen[s.Name] <= 2 || s.State == kubecontainer.ContainerStateRunning {
			kept = append(kept, s)
			continue
		}
		if err := w.removeContainer(ctx, s, false); err != nil {
			w.r.Log.Warn("remove an old container", "container", s.ID.ID, "err", err)
			kept = append(kept, s)
		}
	}
	n := *w.observer.status
	n.ContainerStatuses = kept
	w.observer.status = &n
}

// removeContainer removes a container that does not run, and its log unless that is kept.
func (w *worker) removeContainer(ctx context.Context, s *kubecontainer.Status, keepLog bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if !keepLog {
		resp, err := w.r.CRI.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: s.ID.ID})
		if err == nil && resp.GetStatus().GetLogPath() != "" {
			podlogs.RemoveLog(resp.Status.LogPath)
		}
		pod, _ := w.Object()
		w.r.links.Unlink(w.r.Logs, pod, s)
	}
	_, err := w.r.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: s.ID.ID})
	if cri.NotFound(err) {
		return nil
	}
	return err
}

// event records an event about one container of the pod.
func (w *worker) event(pod *v1.Pod, c *v1.Container, kind, reason, format string, args ...any) {
	w.r.Recorder.Eventf(ref.Container(pod, c), kind, reason, format, args...)
}

// target is a container of the pod, for hooks.
func (w *worker) target(pod *v1.Pod, c *v1.Container, id string) hook.Target {
	return hook.Target{Pod: pod, Container: c, ID: id, IP: w.podIP(pod)}
}
