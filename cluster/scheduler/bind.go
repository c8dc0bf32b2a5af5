package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

var assignedDelete = framework.Event{Kind: framework.AssignedPod, Action: framework.Delete}

// assume counts pod as being on node and has it bound there alongside what follows. It returns why
// not, and then has undone what it did.
func (s *Scheduler) assume(ctx context.Context, profile *framework.Profile, state *framework.CycleState,
	pod *framework.QueuedPod, node string,
) *failure {
	info := pod.OnNode(node)
	uid := info.Pod().UID
	if err := s.cache.Assume(info); err != nil {
		return &failure{err: err, nomination: &noNomination}
	}
	s.queue.Unnominate(uid)
	b := &binding{s, profile, state, pod, info, node}
	onItsWay := false
	defer func() {
		if !onItsWay { // rejected, or a plugin panicked
			b.undo(ctx)
		}
	}()
	if status := profile.Reserve(ctx, state, info, node); !status.OK() {
		return rejectedOn(status)
	}
	waits, status := profile.Permit(ctx, state, info, node)
	if !status.OK() {
		return rejectedOn(status)
	}
	if len(waits) > 0 {
		onItsWay = true
		state.Nodes = nil // the next cycle changes it
		waiting := s.handle.Waiting.Add(info, node, waits)
		s.finished.Go(func() { b.wait(ctx, waiting) })
		return nil
	}
	prepares := profile.Prepares(state, info, node)
	onItsWay = true
	state.Nodes = nil
	s.queue.Done(uid)
	if prepares {
		s.finished.Go(func() { b.prepare(ctx) })
		return nil
	}
	s.binding <- struct{}{}
	s.finished.Go(func() { b.run(ctx) })
	return nil
}

// preparing are the pods that PreBind plugins work for, by UID, with what ends that.
type preparing struct {
	mu   sync.Mutex
	pods map[types.UID]context.CancelCauseFunc
}

var errRemoved = errors.New("the pod is being deleted")

func (p *preparing) begin(ctx context.Context, uid types.UID) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pods == nil {
		p.pods = make(map[types.UID]context.CancelCauseFunc)
	}
	p.pods[uid] = cancel
	return ctx
}

// end ends what is done for a pod, if anything is.
func (p *preparing) end(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cancel := p.pods[uid]; cancel != nil {
		cancel(errRemoved)
		delete(p.pods, uid)
	}
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
	b.prepare(ctx)
}

// prepare has PreBind plugins do their work and then runs the binding. It needs no place before: a
// claim for which no volume comes keeps its pod waiting for minutes, and must not keep others.
func (b *binding) prepare(ctx context.Context) {
	uid := b.info.Pod().UID
	work := b.preparing.begin(ctx, uid)
	if b.cache.Assumed(uid) == nil { // deleted before, when there was nothing to end
		b.preparing.end(uid)
	}
	status := b.guarded(func() *framework.Status { return b.profile.PreBind(work, b.state, b.info, b.node) })
	b.preparing.end(uid)
	if !status.OK() {
		b.failed(ctx, status)
		return
	}
	b.binding <- struct{}{}
	b.run(ctx)
}

// guarded makes a panic of plugins a failure of this pod only.
func (b *binding) guarded(f func() *framework.Status) (status *framework.Status) {
	defer func() {
		if r := recover(); r != nil {
			b.log.Error("panic", "pod", b.info.Pod().Namespace+"/"+b.info.Pod().Name, "panic", r, "stack", string(debug.Stack()))
			status = framework.Errored("", fmt.Errorf("panic: %v", r))
		}
	}()
	return f()
}

// run binds the pod, for which it has a place in Scheduler.binding.
func (b *binding) run(ctx context.Context) {
	status := b.guarded(func() *framework.Status {
		if e := b.binder(b.info.Pod()); e != nil {
			return b.bindExtended(ctx, e)
		}
		return b.profile.Bind(ctx, b.state, b.info, b.node)
	})
	<-b.binding
	if !status.OK() {
		b.failed(ctx, status)
		return
	}
	p := b.info.Pod()
	b.recorders[b.profile.Name].Eventf(p, nil, v1.EventTypeNormal, scheduled, "Binding",
		"Successfully assigned %v/%v to %v", p.Namespace, p.Name, b.node)
	b.profile.PostBind(ctx, b.state, b.info, b.node)
}

// failed takes back what was done for a pod that could not be bound.
func (b *binding) failed(ctx context.Context, status *framework.Status) {
	b.undo(ctx)
	b.queue.Move(assignedDelete, b.info.Pod(), nil, nil)
	b.fail(ctx, b.profile, b.pod, &failure{err: status.Err(), rejected: status.Rejected(), nomination: &noNomination})
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
