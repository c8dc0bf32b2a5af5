package pod

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/inbox"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/resize"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/stop"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

const (
	// A step that failed for another reason is tried again after 1 s, doubling up to a minute.
	retryFirst = time.Second
	retryMost  = time.Minute
	// A pod of which nothing has been heard is looked at again after lookAgain and up to as long as
	// lookSpread more: an event may have been lost. The spread keeps pods that started together
	// apart.
	lookAgain  = 5 * time.Minute
	lookSpread = time.Minute
)

// worker is one pod. Its inbox and what is reported of it are shared; the rest belongs to the
// worker's goroutine.
type worker struct {
	*inbox.Inbox
	r   *Runner
	uid types.UID

	reporter reporter
	resize   *resize.Resizer
	observer observer
	probing  probing
	network  connection
	stopper  *stop.Stopper
	waiting  *waitingContainers

	retry   time.Duration // delay before the last failed step was tried again
	retryAt time.Time
	mounted *v1.Pod // the object whose volumes are mounted
	ending  bool
	haste   haste // of the last attempt to end the pod
	ended   bool
	cleaned bool
}

func newWorker(r *Runner, pod *v1.Pod) *worker {
	w := &worker{
		Inbox: inbox.New(pod), r: r, uid: pod.UID,
		reporter: reporter{uid: pod.UID, writer: r.Status, recorder: r.Recorder},
		resize:   resize.New(r.resizes, pod),
		observer: observer{cri: r.CRI, uid: pod.UID, status: &kubecontainer.PodStatus{ID: pod.UID}},
		probing:  probing{probes: r.Probes, uid: pod.UID},
		network:  connection{networks: r.Networks, uid: pod.UID},
		waiting:  newWaitingContainers(r.Recorder),
	}
	w.stopper = stop.New(r.ctx, w.Inbox, r.CRI.Runtime, r.Recorder, r.hooks, w.reportWaiting)
	return w
}

// current is the newest object of the pod, as the node has agreed to run it.
func (w *worker) current() *v1.Pod {
	pod, _ := w.Object()
	return w.resize.Given(pod)
}

func (w *worker) view() View {
	pod := w.current()
	_, removed := w.Object()
	if v := w.reporter.known.Load(); v != nil {
		shown := *pod
		shown.Status = v.Pod.Status
		return View{Pod: &shown, Observed: v.Observed, Removed: removed}
	}
	return View{Pod: pod, Observed: &kubecontainer.PodStatus{ID: w.uid}, Removed: removed}
}

// run is the pod's goroutine. It starts with the first wake, which comes with the object.
func (w *worker) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-w.r.ctx.Done():
			return
		case <-w.Woke():
		case <-timer.C:
		}
		at := w.guarded()
		if w.cleaned {
			w.r.forget(w)
			return
		}
		timer.Stop()
		if !w.ended { // then there is nothing to see any more
			at = sooner(at, time.Now().Add(lookAgain+rand.N(lookSpread)))
		}
		if !at.IsZero() {
			timer.Reset(max(time.Until(at), 0))
		}
	}
}

// guarded turns a panic over one odd pod into a failed step of that pod.
func (w *worker) guarded() (at time.Time) {
	defer func() {
		if r := recover(); r != nil {
			w.r.Log.Error("panic in a pod's loop", "uid", w.uid, "panic", r, "stack", string(debug.Stack()))
			at = w.later()
		}
	}()
	return w.step()
}

// later returns when a step that failed now is tried again.
func (w *worker) later() time.Time {
	w.retry = min(max(2*w.retry, retryFirst), retryMost)
	w.retryAt = time.Now().Add(w.retry)
	return w.retryAt
}

// tooSoon says whether a step that failed is not to be tried again yet: what the runtime tells of
// our own failed attempts must not bring the next one about.
func (w *worker) tooSoon() bool {
	return !w.TakeRetry() && time.Now().Before(w.retryAt)
}

// reportOnly reports what is known of a pod whose step waits for its next attempt: what probes
// find, and that the pod has been active for too long. It returns when to look again.
func (w *worker) reportOnly() time.Time {
	if !w.reporter.written { // nothing is known yet
		return w.retryAt
	}
	pod := w.current()
	at := sooner(w.retryAt, w.reporter.pastDeadline(pod))
	if s := w.report(pod, false); podutil.IsPodPhaseTerminal(s.Phase) {
		w.ending, w.retry, w.retryAt = true, 0, time.Time{}
	}
	return at
}

// haste is what makes an attempt to end a pod succeed, or matter, where the one before failed.
type haste struct {
	removed, evicted, deleted bool
	grace                     int64 // of the deletion, in seconds; it only becomes shorter
}

// endTooSoon says whether the end of the pod, which failed, is not to be tried again yet. An
// attempt runs hooks and records events, so that any wake must not bring the next one about.
func (w *worker) endTooSoon(pod *v1.Pod, removed bool) bool {
	now := haste{removed: removed, evicted: w.Eviction() != nil}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		now.deleted, now.grace = true, *grace
	}
	before := w.haste
	w.haste = now
	return w.tooSoon() && now == before
}

// step does what can be done now, and returns when to look again if nothing happens before; the
// zero time means never.
func (w *worker) step() time.Time {
	ctx, cancel := context.WithCancel(w.r.ctx)
	defer cancel()
	w.OnEnd(cancel)
	pod, removed := w.Object()
	if !w.ending && (removed || w.Eviction() != nil || pod.DeletionTimestamp != nil || podutil.IsPodPhaseTerminal(pod.Status.Phase)) {
		w.ending = true
		w.retry, w.retryAt = 0, time.Time{} // of what failed before
	}
	if !w.ending {
		if at := w.bringUp(ctx, pod); !w.ending {
			return at
		}
		pod, removed = w.Object()
	}
	if w.endTooSoon(pod, removed) {
		return w.retryAt
	}
	if !w.ended {
		if err := w.end(); err != nil {
			if w.r.ctx.Err() != nil {
				return time.Time{}
			}
			w.r.Log.Warn("end a pod", "pod", pod.Namespace+"/"+pod.Name, "err", err)
			return w.later()
		}
		w.ended, w.retry, w.retryAt = true, 0, time.Time{}
		pod, removed = w.Object()
	}
	if !removed {
		return time.Time{} // until the object is gone, logs can be read
	}
	if err := w.clean(); err != nil {
		if w.r.ctx.Err() != nil {
			return time.Time{}
		}
		w.r.Log.Warn("remove a pod's remains", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		return w.later()
	}
	w.cleaned = true
	return time.Time{}
}

// bringUp does what can be done now for a pod that is to run, and returns when to look again. It
// may find that the pod is ending.
func (w *worker) bringUp(ctx context.Context, pod *v1.Pod) time.Time {
	if w.tooSoon() {
		return w.reportOnly()
	}
	at, err := w.sync(ctx, pod)
	switch {
	case err == nil:
		w.retry, w.retryAt = 0, time.Time{}
		return at
	case ctx.Err() != nil:
		w.Wake() // the end was asked for meanwhile
		return time.Time{}
	}
	w.r.Log.Warn("bring a pod up", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	return sooner(at, w.later())
}

// report generates the pod's status and has it written.
func (w *worker) report(pod *v1.Pod, ended bool) v1.PodStatus {
	return w.reporter.report(status.Input{
		Pod: pod, Observed: w.observer.status, Waiting: w.waiting.states(), Results: w.r.Probes, HostIPs: w.r.HostIPs(),
		Resize: w.resize.Conditions(), Evict: w.Eviction(), Ended: ended, Now: time.Now(),
	})
}
