package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/scheduler/extender"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// failure is that a pod was not scheduled.
type failure struct {
	err error
	// rejected is that the pod does not fit, as against an unexpected error; plugins are those that
	// said so.
	rejected bool
	plugins  sets.Set[string]
	// nomination is as in framework.PostFilter.
	nomination *string
}

// rejectedOn returns the failure that a plugin's answer about the chosen node is.
func rejectedOn(status *framework.Status) *failure {
	if !status.Rejected() {
		return &failure{err: status.Err(), nomination: &noNomination}
	}
	reasons := make([]string, len(status.Reasons()))
	for i, r := range status.Reasons() {
		reasons[i] = "1 " + r
	}
	return &failure{
		err:      &framework.FitError{Nodes: 1, PreFilter: strings.Join(reasons, ", ")},
		rejected: true, plugins: sets.New(status.Plugin()), nomination: &noNomination,
	}
}

// fail puts a pod back into the queue and tells users why, by an event and in its status.
func (s *Scheduler) fail(ctx context.Context, profile *framework.Profile, pod *framework.QueuedPod, f *failure) {
	pod.Rejectors = f.plugins
	if pod.Rejectors == nil {
		pod.Rejectors = sets.New[string]()
	}
	pod.Gate = ""
	name := pod.Pod().Namespace + "/" + pod.Pod().Name
	reason, message := v1.PodReasonUnschedulable, f.err.Error()
	if !f.rejected {
		reason = v1.PodReasonSchedulerError
	}
	before, now := pod.Told, framework.Told{Reason: reason, Message: message, Node: pod.Told.Node}
	if f.nomination != nil {
		now.Node = *f.nomination
	}
	pod.Told = now // the queue has it next
	info := s.queue.Return(pod, f.nomination)
	if info == nil {
		s.log.Debug("pod is gone or bound, though it could not be scheduled", "pod", name, "err", f.err)
		return
	}
	if !f.rejected && !errors.Is(f.err, extender.ErrSilent) {
		s.log.Error("schedule", "pod", name, "err", f.err)
	}
	p := info.Pod()
	s.recorders[profile.Name].Eventf(p, nil, v1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", truncate(message))

	status := p.Status.DeepCopy()
	changed := podutil.UpdatePodCondition(status, &v1.PodCondition{
		Type:               v1.PodScheduled,
		ObservedGeneration: podutil.CalculatePodConditionObservedGeneration(&p.Status, p.Generation, v1.PodScheduled),
		Status:             v1.ConditionFalse,
		Reason:             reason,
		Message:            message,
	})
	if f.nomination != nil && status.NominatedNodeName != *f.nomination {
		status.NominatedNodeName = *f.nomination
		changed = true
	}
	if before != (framework.Told{}) && before != now {
		p, changed = unlike(p, before, now), true
	}
	if !changed {
		return
	}
	write := func(ctx context.Context) {
		if err := framework.PatchStatus(ctx, s.handle.Kube, p, status); err != nil && !apierrors.IsNotFound(err) &&
			!errors.Is(err, context.Canceled) {
			s.log.Error("update pod", "pod", name, "err", err)
		}
	}
	select {
	case s.patches <- write:
	case <-ctx.Done():
	}
}

// unlike returns pod without what its status says of scheduling, for a patch that says all of that:
// what was told before is on its way, and pod, which does not show it yet, may happen to be like
// what is to be told now.
func unlike(pod *v1.Pod, before, now framework.Told) *v1.Pod {
	other := *pod
	if now.Node != before.Node {
		other.Status.NominatedNodeName = before.Node
	}
	other.Status.Conditions = slices.DeleteFunc(slices.Clone(pod.Status.Conditions), func(c v1.PodCondition) bool {
		return c.Type == v1.PodScheduled
	})
	return &other
}

// patch writes what fail has to say into pods' status, in that order and alongside the cycles.
func (s *Scheduler) patch(ctx context.Context) {
	for {
		select {
		case f := <-s.patches:
			f(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// maxNote is how long an event's note may be.
const maxNote = 1024

func truncate(note string) string {
	if len(note) <= maxNote {
		return note
	}
	return fmt.Sprint(note[:maxNote-4], " ...")
}
