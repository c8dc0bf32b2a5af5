package pod

import (
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/events"
	"k8s.io/kubernetes/pkg/kubelet/util/format"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/decide"
	"github.com/coracle-project/coracle/cluster/kubelet/ref"
)

// A container that could not be made is tried again after 1 s, doubling up to 10 s.
const (
	makeAgainFirst = time.Second
	makeAgainMost  = 10 * time.Second
)

// waitingContainer is why a container is not running, and until when it is not tried again.
type waitingContainer struct {
	state v1.ContainerStateWaiting
	until time.Time
	key   string // decide.BackOffKey of the definition that failed
	tries int
	told  time.Time // the back-off that an event told of
	// unstarted is that of the refusal which began it.
	unstarted bool
}

// waitingContainers are those of one pod that are not started yet, and how often they ended.
type waitingContainers struct {
	recorder record.EventRecorder
	backOff  *flowcontrol.Backoff
	all      map[string]*waitingContainer
}

func newWaitingContainers(r record.EventRecorder) *waitingContainers {
	return &waitingContainers{recorder: r, backOff: decide.NewBackOff(), all: map[string]*waitingContainer{}}
}

// states are what the pod's status says of the containers.
func (w *waitingContainers) states() map[string]v1.ContainerStateWaiting {
	states := make(map[string]v1.ContainerStateWaiting, len(w.all))
	for name, is := range w.all {
		states[name] = is.state
	}
	return states
}

// next returns when the first of them may be tried, zero if there is none.
func (w *waitingContainers) next() time.Time {
	var at time.Time
	now := time.Now()
	for _, is := range w.all {
		if is.until.After(now) {
			at = sooner(at, is.until)
		}
	}
	return at
}

// failed notes that a container could not be started.
func (w *waitingContainers) failed(c *v1.Container, err error) {
	is := &waitingContainer{state: v1.ContainerStateWaiting{Reason: createError, Message: err.Error()}, key: decide.BackOffKey(c)}
	if was := w.all[c.Name]; was != nil {
		is.tries = was.tries + 1
	}
	is.until = time.Now().Add(min(makeAgainFirst<<min(is.tries, 10), makeAgainMost))
	var r *refusal
	if errors.As(err, &r) {
		is.state = v1.ContainerStateWaiting{Reason: r.reason, Message: r.message}
		is.unstarted = r.unstarted
		if !r.until.IsZero() {
			is.until, is.tries = r.until, 0
		}
	}
	w.all[c.Name] = is
}

// keep notes which containers are in back-off, and leaves those out that failed a moment ago for
// another reason. It returns whether anything in the status changed by that.
func (w *waitingContainers) keep(pod *v1.Pod, a *decide.Actions) bool {
	changed := false
	for _, c := range a.Wait {
		was := w.all[c.Container.Name]
		if was == nil || !was.told.Equal(c.Until) {
			n := &waitingContainer{told: c.Until, until: c.Until, key: decide.BackOffKey(c.Container)}
			if was != nil {
				n.unstarted = was.unstarted
			}
			w.all[c.Container.Name] = n
			w.recorder.Eventf(ref.Container(pod, c.Container), v1.EventTypeWarning, events.BackOffStartContainer,
				"Back-off restarting failed container %s in pod %s", c.Container.Name, format.Pod(pod))
			n.state = v1.ContainerStateWaiting{
				Reason: kubecontainer.ErrCrashLoopBackOff.Error(),
				Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s",
					c.BackOff, c.Container.Name, format.Pod(pod)),
			}
			changed = true
		}
	}
	now := time.Now()
	var start []decide.Start
	blocked := false
	for _, s := range a.Start {
		is := w.all[s.Container.Name]
		held := is != nil && is.until.After(now) && is.key == decide.BackOffKey(s.Container)
		if !held && !(blocked && s.Kind == decide.Init) {
			start = append(start, s)
		}
		blocked = blocked || held && s.Kind == decide.Init && !podutil.IsRestartableInitContainer(s.Container)
	}
	a.Start = start
	return changed
}

// forgive has containers that could not be started in a sandbox that is being replaced start in the
// next one without delay, and returns whether there are any. A runtime that stops a sandbox ends
// its containers first and tells of each (containerd): for a moment it looks as if only they had
// ended, and what is started then fails.
func (w *waitingContainers) forgive() (forgiven bool) {
	for name, is := range w.all {
		if !is.unstarted {
			continue
		}
		w.backOff.Reset(is.key)
		delete(w.all, name)
		forgiven = true
	}
	return forgiven
}
