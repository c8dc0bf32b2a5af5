package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

var assignedDelete = framework.Event{Kind: framework.AssignedPod, Action: framework.Delete}

// assume counts pod as being on node and has it bound there beside what follows. It returns why
// not, and then has undone what it did.
func (s *Scheduler) assume(ctx context.Context, profile *framework.Profile, state *framework.CycleState, pod *framework.QueuedPod, node string) *failure {
	info := pod.OnNode(node)
	uid := info.Pod().UID
	if err := s.cache.Assume(info); err != nil {
		return &failure{err: err, nomination: &noNomination}
	}
	s.queue.Unnominate(uid)
	b := &binding{s, profile, state, pod, info, node}
	if status := profile.Reserve(ctx, state, info, node); !status.OK() {
		b.undo(ctx)
		return rejectedOn(status)
	}
	waits, status := profile.Permit(ctx, state, info, node)
	if !status.OK() {
		b.undo(ctx)
		return rejectedOn(status)
	}
	state.Nodes = nil // the next cycle changes it
	if len(waits) > 0 {
		waiting := s.handle.Waiting.Add(info, node, waits)
		s.finished.Go(func() { b.wait(ctx, waiting) })
		return nil
	}
	s.queue.Done(uid)
	s.binding <- struct{}{}
	s.finished.Go(func() { b.run(ctx) })
	return nil
}

// binding is a pod on its way from being assumed on a node to being bound there.
type binding struct {
	*Scheduler
	profile *framework.Profile
	state   *framework.CycleState
	pod     *framework.QueuedPod // as it was popped
	info    *framework.PodInfo   // as it is assumed
	node    string
}

// wait waits for Permit plugins and then runs the binding.
func (b *binding) wait(ctx context.Context, waiting *framework.WaitingPod) {
	if status := b.handle.Waiting.Wait(ctx, waiting); !status.OK() {
		b.undo(ctx)
		f := rejectedOn(status)
		f.nomination = &noNomination
		b.fail(ctx, b.profile, b.pod, f)
		// Not before: what makes room for others does not help the pod itself.
		uid := b.pod.Key()
		b.queue.Move(assignedDelete, b.info.Pod(), nil, func(p *v1.Pod) bool { return p.UID != uid })
		return
	}
	b.queue.Done(b.info.Pod().UID)
	b.binding <- struct{}{}
	b.run(ctx)
}

// bind asks the plugins to bind the pod. A panic there is a failure of this pod only.
func (b *binding) bind(ctx context.Context) (status *framework.Status) {
	defer func() {
		if r := recover(); r != nil {
			slog.Error("panic", "pod", b.info.Pod().Namespace+"/"+b.info.Pod().Name, "panic", r, "stack", string(debug.Stack()))
			status = framework.Errored("", fmt.Errorf("panic: %v", r))
		}
	}()
	return b.profile.Bind(ctx, b.state, b.info, b.node)
}

// run binds the pod, for which it has a place in Scheduler.binding.
func (b *binding) run(ctx context.Context) {
	status := b.bind(ctx)
	<-b.binding
	if !status.OK() {
		b.undo(ctx)
		b.queue.Move(assignedDelete, b.info.Pod(), nil, nil)
		b.fail(ctx, b.profile, b.pod, &failure{err: status.Err(), rejected: status.Rejected(), nomination: &noNomination})
		return
	}
	p := b.info.Pod()
	b.recorders[b.profile.Name].Eventf(p, nil, v1.EventTypeNormal, scheduled, "Binding",
		"Successfully assigned %v/%v to %v", p.Namespace, p.Name, b.node)
	b.profile.PostBind(ctx, b.state, b.info, b.node)
}

// undoTimeout bounds what plugins undo after the scheduler was stopped.
const undoTimeout = 10 * time.Second

// undo takes back what was assumed and reserved.
func (b *binding) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	b.profile.Unreserve(ctx, b.state, b.info, b.node)
	b.cache.Forget(b.info.Pod().UID)
}
