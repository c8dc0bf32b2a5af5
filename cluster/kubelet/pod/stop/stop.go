// Package stop ends the containers of a pod: each within its grace, after its preStop hook, and
// sidecars after those that need them.
package stop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/decide"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/hook"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/inbox"
	"github.com/coracle-project/coracle/cluster/kubelet/ref"
)

// leastGrace is what every container gets to end by itself, however impatient its owner is.
const leastGrace = 2 * time.Second

// EvictionGrace is what the containers of an evicted pod get: what they take is wanted now.
const EvictionGrace = time.Second

// callTimeout bounds a call beyond the grace that the container has.
const callTimeout = 2 * time.Minute

// Runtime is CRI's part that stops.
type Runtime interface {
	StopContainer(context.Context, *runtimeapi.StopContainerRequest, ...grpc.CallOption) (*runtimeapi.StopContainerResponse, error)
	StopPodSandbox(context.Context, *runtimeapi.StopPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.StopPodSandboxResponse, error)
}

// Stopper stops what one pod runs. It belongs to the pod's goroutine.
type Stopper struct {
	ctx      context.Context // the runner's: it ends when the kubelet does
	inbox    *inbox.Inbox    // tells of a grace that is shortened
	runtime  Runtime
	recorder record.EventRecorder
	hooks    *hook.Runner
	look     func() // called when the pod's goroutine, which waits, is woken

	stopped map[string]bool // sandboxes that have been stopped
}

// New returns the Stopper of a pod. The pod's goroutine waits for what is stopped. If it is woken,
// look is called in its place.
func New(ctx context.Context, in *inbox.Inbox, r Runtime, events record.EventRecorder, hooks *hook.Runner, look func()) *Stopper {
	return &Stopper{ctx: ctx, inbox: in, runtime: r, recorder: events, hooks: hooks, look: look, stopped: map[string]bool{}}
}

// Pod stops all containers together, each within its grace, sidecars after those that
// need them, and then the sandboxes. A grace that is shortened meanwhile takes effect at once.
func (s *Stopper) Pod(pod *v1.Pod, observed *kubecontainer.PodStatus, ip string) error {
	alive := Running(observed)
	order := newOrder(pod, alive)
	errs := make([]error, len(alive))
	shorter := newShorterGrace(s.ctx, s.inbox, pod, s.look)
	defer shorter.stop()
	var wg sync.WaitGroup
	for i, c := range alive {
		spec := kubecontainer.GetContainerSpec(pod, c.Name)
		if spec == nil {
			spec = &v1.Container{Name: c.Name} // taken out of the pod, or of a pod that is only remembered
		}
		wg.Go(func() {
			errs[i] = s.container(hook.Target{Pod: pod, Container: spec, ID: c.ID.ID, IP: ip}, "", "", order, shorter)
			order.ended(c.Name)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	for _, sandbox := range observed.SandboxStatuses {
		if s.stopped[sandbox.Id] {
			continue
		}
		_, err := s.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox.Id})
		if err != nil && !cri.NotFound(err) {
			return fmt.Errorf("stop sandbox %s: %w", sandbox.Id, err)
		}
		s.stopped[sandbox.Id] = true
	}
	return nil
}

// Container runs the container's preStop hook and stops it. A grace that is shortened meanwhile,
// because the whole pod is to end, takes effect at once.
func (s *Stopper) Container(t hook.Target, message string, reason decide.StopReason) error {
	shorter := newShorterGrace(s.ctx, s.inbox, t.Pod, s.look)
	defer shorter.stop()
	return s.container(t, message, reason, nil, shorter)
}

// container runs the container's preStop hook, waits for its turn and stops it.
func (s *Stopper) container(t hook.Target, message string, reason decide.StopReason, order *order, shorter *shorterGrace) error {
	pod, c := t.Pod, t.Container
	if message == "" {
		message = "Stopping container " + c.Name
	}
	s.recorder.Eventf(ref.Container(pod, c), v1.EventTypeNormal, events.KillingContainer, "%s", message)
	grace := graceOf(pod, c, reason)
	if s.inbox.Eviction() != nil {
		grace = min(grace, EvictionGrace)
	}
	deadline := time.Now().Add(grace)
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && time.Now().Before(deadline) {
		ctx, cancel := shorter.until(deadline)
		if _, err := s.hooks.Run(ctx, t, c.Lifecycle.PreStop); err != nil && ctx.Err() == nil {
			s.recorder.Eventf(ref.Container(pod, c), v1.EventTypeWarning, events.FailedPreStopHook, "PreStopHook failed")
		}
		cancel()
	}
	if order != nil {
		ctx, cancel := shorter.until(deadline)
		order.wait(ctx, c.Name)
		cancel()
	}
	if err := s.ctx.Err(); err != nil {
		return err // the kubelet's next process runs the hook and stops the container
	}
	return s.now(t.ID, deadline, shorter)
}

// Now has the runtime stop a container without grace.
func (s *Stopper) Now(id string) error { return s.now(id, time.Now(), nil) }

// now has the runtime stop a container by a deadline, which shorter may bring forward.
func (s *Stopper) now(id string, deadline time.Time, shorter *shorterGrace) error {
	stop := func(by time.Time) error {
		left := max(time.Until(by), leastGrace)
		ctx, cancel := context.WithTimeout(s.ctx, left+callTimeout)
		defer cancel()
		_, err := s.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{
			ContainerId: id, Timeout: int64((left + time.Second - 1) / time.Second),
		})
		if err != nil && !cri.NotFound(err) {
			return fmt.Errorf("stop container %s: %w", id, err)
		}
		return nil
	}
	first := make(chan error, 1)
	again := shorter.again()
	deadline = shorter.atMost(deadline)
	go func(by time.Time) { first <- stop(by) }(deadline)
	for {
		select {
		case err := <-first:
			return err
		case <-again:
		}
		again = shorter.again()
		if by := shorter.atMost(deadline); by.Before(deadline) {
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

// Running returns the containers that run or may run.
func Running(o *kubecontainer.PodStatus) []*kubecontainer.Status {
	var all []*kubecontainer.Status
	for _, s := range o.ContainerStatuses {
		if s.State == kubecontainer.ContainerStateRunning || s.State == kubecontainer.ContainerStateUnknown {
			all = append(all, s)
		}
	}
	return all
}
