package decide

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/coracle-project/coracle/cluster/kubelet/probe"
)

// initWalk finds how far a pod's init containers are, and which are next.
//
// It looks at them from the last to the first, since the runtime may have forgotten those that are
// done: the last one that it knows tells how far the pod is. Those before it are done; of them only
// sidecars matter, which are kept running.
type initWalk struct {
	*Facts
	list []v1.Container
	stop []Stop
	next []int // to start, the last first
	past bool  // all from here on backwards have been done once
	all  bool  // all are done
	over bool  // one failed for good
}

func (f *Facts) initContainers(a *Actions) {
	w := initWalk{Facts: f, list: f.Pod.Spec.InitContainers}
	if len(w.list) == 0 {
		a.Initialized = true
		return
	}
	w.past = f.regularAlive()
	w.all = w.past
	for i := len(w.list) - 1; i >= 0 && !w.over; i-- {
		s := f.Observed.FindContainerStatusByName(w.list[i].Name)
		sidecar := podutil.IsRestartableInitContainer(&w.list[i])
		switch {
		case s == nil:
			if w.past && sidecar {
				w.next = append(w.next, i) // it was running, and its remains have been removed
			}
			continue
		case w.past && !sidecar:
			continue
		case sidecar:
			w.sidecar(i, s)
		default:
			w.plain(i, s)
		}
		w.past = true
	}
	if w.over {
		a.StopAll = true
		return
	}
	if !w.past {
		w.next = append(w.next, 0)
	}
	a.Initialized = w.all
	a.Stop = append(a.Stop, w.stop...)
	slices.Reverse(w.next)
	for _, i := range w.next {
		a.Start = append(a.Start, Start{Container: &w.list[i], Kind: Init})
	}
}

// done says that a container has done what those after it wait for.
func (w *initWalk) done(i int) {
	switch {
	case i == len(w.list)-1:
		w.all = true
	case !w.past:
		w.next = append(w.next, i+1)
	}
}

func (w *initWalk) again(i int) { w.next = append(w.next, i) }

func (w *initWalk) end(i int, s *kubecontainer.Status, reason StopReason, format string, args ...any) {
	w.stop = append(w.stop, Stop{Container: &w.list[i], ID: s.ID, Message: fmt.Sprintf(format, args...), Reason: reason})
}

// plain looks at an init container that has to succeed once.
func (w *initWalk) plain(i int, s *kubecontainer.Status) {
	c := &w.list[i]
	switch s.State {
	case kubecontainer.ContainerStateRunning:
	case kubecontainer.ContainerStateCreated:
		// Making and starting it is one step: it could not be started.
		w.again(i)
	case kubecontainer.ContainerStateExited:
		switch {
		case s.ExitCode == 0:
			w.done(i)
		case kubecontainer.ShouldContainerBeRestarted(klog.Background(), c, w.Pod, w.Observed):
			w.again(i)
		default:
			w.over = true
		}
	default:
		if !restartsUnknown(w.Pod, c) {
			w.over = true
			return
		}
		w.end(i, s, "", "Init container is in %q state, try killing it before restart", s.State)
		w.again(i)
	}
}

// sidecar looks at an init container that is kept running; the next one starts when it has started.
func (w *initWalk) sidecar(i int, s *kubecontainer.Status) {
	c := &w.list[i]
	switch s.State {
	case kubecontainer.ContainerStateRunning:
	case kubecontainer.ContainerStateCreated, kubecontainer.ContainerStateExited:
		w.again(i)
		return
	default:
		w.end(i, s, "", "Init container is in %q state, try killing it before restart", s.State)
		w.again(i)
		return
	}
	if c.StartupProbe != nil {
		switch w.Results.Get(s.ID.ID, probe.Startup) {
		case probe.Unknown:
			return
		case probe.Failure:
			w.end(i, s, StopForStartup, "Init container %s failed startup probe", c.Name)
			w.again(i)
			return
		}
	}
	w.done(i)
	switch {
	case changed(c, s):
		w.end(i, s, "", "Init container %s definition changed", c.Name)
		w.again(i)
	case w.Restart[c.Name] == s.ID.ID:
		w.end(i, s, "", resizeRestarts, c.Name)
		w.again(i)
	case w.Results.Get(s.ID.ID, probe.Liveness) == probe.Failure:
		w.end(i, s, StopForLiveness, "Init container %s failed liveness probe", c.Name)
		w.again(i)
	}
}

// regularAlive says whether a regular container exists that has not ended: then all init containers
// have been done. Ended ones say nothing: they may be from the sandbox before this one.
func (f *Facts) regularAlive() bool {
	return slices.ContainsFunc(f.Pod.Spec.Containers, func(c v1.Container) bool {
		s := f.Observed.FindContainerStatusByName(c.Name)
		return s != nil && (s.State == kubecontainer.ContainerStateCreated || s.State == kubecontainer.ContainerStateRunning)
	})
}

// restartsUnknown says whether a container with an unknown exit status is started again.
func restartsUnknown(pod *v1.Pod, c *v1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != v1.ContainerRestartPolicyNever
	}
	return restarts(pod)
}
