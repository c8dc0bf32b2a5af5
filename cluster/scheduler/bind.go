package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		work := s.preparing.begin(ctx, uid)
		s.finished.Go(func() { b.prepare(ctx, work) })
		return nil
	}
	s.binding <- struct{}{}
	s.finished.Go(func() { b.run(ctx) })
	return nil
}

// preparing are the pods that PreBind plugins work for, by UID.
type preparing struct {
	mu   sync.Mutex
	pods map[types.UID]*preparation
}

// preparation is the work for one pod. A pod stays here until what was assumed is taken back.
type preparation struct {
	cancel context.CancelCauseFunc
	ended  error // why it was ended, or failed
}

var (
	errRemoved   = errors.New("the pod is being deleted")
	errPreempted = errors.New("the room was needed for a pod of higher priority")
)

func (p *preparing) begin(ctx context.Context, uid types.UID) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pods == nil {
		p.pods = make(map[types.UID]*preparation)
	}
	p.pods[uid] = &preparation{cancel: cancel}
	return ctx
}

// end ends what is done for a pod. It says whether it did: else there was nothing, or the pod is
// being bound.
func (p *preparing) end(uid types.UID, why error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.pods[uid]
	if w == nil {
		return false
	}
	if w.ended == nil {
		w.ended = why
		w.cancel(why)
	}
	return true
}

// seal is told what came of the work. From then on it cannot be ended, if it has not been yet: the
// pod is bound next. Otherwise it returns why not.
func (p *preparing) seal(uid types.UID, failed error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.pods[uid]
	if w.ended == nil {
		w.ended = failed
	}
	if w.ended == nil {
		w.cancel(nil)
		delete(p.pods, uid)
	}
	return w.ended
}

// forget is told that what was assumed for a pod is taken back.
func (p *preparing) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.pods[uid]; w != nil {
		w.cancel(nil)
		delete(p.pods, uid)
	}
}

// letGoOf keeps a pod that is not bound yet from being bound where it is assumed, and says whether
// it is not bound: if so, it is tried again by itself.
func (s *Scheduler) letGoOf(pod *v1.Pod) bool {
	if w := s.handle.Waiting.Get(pod.UID); w != nil && w.End(errPreempted) {
		return true
	}
	if s.preparing.end(pod.UID, errPreempted) {
		return true
	}
	now := s.current(pod)
	return now != nil && !assigned(now) && s.cache.Assumed(pod.UID) == nil // it was let go meanwhile
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
	uid := b.info.Pod().UID
	work := b.preparing.begin(ctx, uid)
	b.queue.Done(uid)
	b.prepare(ctx, work)
}

// prepare has PreBind plugins do their work and then runs the binding. It needs no place before: a
// claim for which no volume comes keeps its pod waiting for minutes, and must not keep others.
func (b *binding) prepare(ctx, work context.Context) {
	uid := b.info.Pod().UID
	if b.cache.Assumed(uid) == nil { // deleted before, when there was nothing to end
		b.preparing.end(uid, errRemoved)
	}
	b.expect(work)
	status := b.guarded(func() *framework.Status { return b.profile.PreBind(work, b.state, b.info, b.node) })
	var failed error
	if !status.OK() {
		failed = status.Err()
	}
	if err := b.preparing.seal(uid, failed); err != nil {
		if status.OK() {
			status = framework.Errored("", err)
		}
		b.failed(ctx, status)
		return
	}
	b.binding <- struct{}{}
	b.run(ctx)
}

// expect writes into the pod's status where it is about to be bound, before PreBind plugins work
// for minutes: a scheduler that is killed meanwhile finds the pod nominated there, and keeps its
// room.
func (b *binding) expect(ctx context.Context) {
	pod := b.pod.Pod()
	if pod.Status.NominatedNodeName == b.node && (b.pod.Told == framework.Told{} || b.pod.Told.Node == b.node) {
		return
	}
	b.pod.Told.Node = b.node
	before := *pod
	before.Status.NominatedNodeName = "" // whatever is on its way
	status := pod.Status.DeepCopy()
	status.NominatedNodeName = b.node
	written := make(chan struct{})
	write := func(ctx context.Context) {
		defer close(written)
		if err := framework.PatchStatus(ctx, b.handle.Kube, &before, status); err != nil && !apierrors.IsNotFound(err) &&
			!errors.Is(err, context.Canceled) {
			b.log.Warn("nominate a pod while it is prepared", "pod", pod.Namespace+"/"+pod.Name, "node", b.node, "err", err)
		}
	}
	select {
	case b.patches <- write:
	case <-ctx.Done():
		return
	}
	select {
	case <-written:
	case <-ctx.Done():
	}
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
	uid := b.info.Pod().UID
	b.cache.Forget(uid)
	b.preparing.forget(uid)
}
