package framework

import (
	"context"
	"runtime/debug"
	"time"
)

// Reserve runs the Reserve plugins. After a failure the caller has to call Unreserve.
func (p *Profile) Reserve(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status {
	for _, pl := range p.reserves {
		if s := pl.Reserve(ctx, state, pod, node); !s.OK() {
			if s.Rejected() {
				return s
			}
			return s.wrap("Reserve", pl)
		}
	}
	return nil
}

// Unreserve undoes Reserve, in the opposite order.
func (p *Profile) Unreserve(ctx context.Context, state *CycleState, pod *PodInfo, node string) {
	for i := len(p.reserves) - 1; i >= 0; i-- {
		pl := p.reserves[i]
		p.guarded("Unreserve", pl, pod, func() { pl.Unreserve(ctx, state, pod, node) })
	}
}

// Permit runs the Permit plugins. The times are how long which plugin wants the pod to wait; none
// if it may go on.
func (p *Profile) Permit(ctx context.Context, state *CycleState, pod *PodInfo, node string) (map[string]time.Duration, *Status) {
	var waits map[string]time.Duration
	for _, pl := range p.permits {
		d, s := pl.Permit(ctx, state, pod, node)
		switch {
		case s.OK():
		case s.Rejected():
			return nil, s
		case s.Code() == Wait:
			if waits == nil {
				waits = make(map[string]time.Duration)
			}
			waits[pl.Name()] = min(d, maxWait)
		default:
			return nil, s.wrap("Permit", pl)
		}
	}
	return waits, nil
}

// Prepares says whether PreBind plugins have anything to do for the pod.
func (p *Profile) Prepares(state *CycleState, pod *PodInfo, node string) bool {
	for _, pl := range p.preBinds {
		if pl.Prepares(state, pod, node) {
			return true
		}
	}
	return false
}

// PreBind runs the PreBind plugins that have something to do for the pod.
func (p *Profile) PreBind(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status {
	for _, pl := range p.preBinds {
		if !pl.Prepares(state, pod, node) {
			continue
		}
		switch s := pl.PreBind(ctx, state, pod, node); {
		case s.OK():
		case s.Rejected():
			return s
		default:
			return s.wrap("PreBind", pl)
		}
	}
	return nil
}

// Bind runs the Bind plugins up to the one that does not Skip.
func (p *Profile) Bind(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status {
	for _, pl := range p.binds {
		s := pl.Bind(ctx, state, pod, node)
		switch {
		case s.Code() == Skip:
			continue
		case s.OK(), s.Rejected():
			return s
		}
		return s.wrap("Bind", pl)
	}
	return NewStatus(Error, "", "no Bind plugin took the pod")
}

// PostBind tells the PostBind plugins.
func (p *Profile) PostBind(ctx context.Context, state *CycleState, pod *PodInfo, node string) {
	for _, pl := range p.postBinds {
		p.guarded("PostBind", pl, pod, func() { pl.PostBind(ctx, state, pod, node) })
	}
}

// guarded keeps a panic where no one can be told of a failure to the plugin itself.
func (p *Profile) guarded(point string, pl Plugin, pod *PodInfo, f func()) {
	defer func() {
		if r := recover(); r != nil {
			p.Log.Error("panic", "point", point, "plugin", pl.Name(), "pod", pod.Pod().Namespace+"/"+pod.Pod().Name, "panic", r,
				"stack", string(debug.Stack()))
		}
	}()
	f()
}
