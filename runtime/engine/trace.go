package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/plan"
)

// Trace takes where the time of one Create or Exec went: the steps of this process in order,
// and between them those of the container's own ("inside").
type Trace func(what string, ours, inside []runtime.Step)

// stopwatch times the steps of this process. The zero value does nothing.
type stopwatch struct {
	to     Trace
	made   func([]runtime.Step) // see runtime.CreateOptions
	what   string
	last   time.Time
	steps  []runtime.Step
	inside []runtime.Step
}

func (e *Engine) stopwatch(what string) stopwatch {
	return stopwatch{to: e.trace, what: what, last: time.Now()}
}

// lap ends a step.
func (s *stopwatch) lap(what string) {
	if s.to == nil && s.made == nil {
		return
	}
	now := time.Now()
	s.steps = append(s.steps, runtime.Step{What: what, Began: s.last, Took: now.Sub(s.last)})
	s.last = now
}

func (s *stopwatch) done() {
	if s.to != nil {
		s.to(s.what, s.steps, s.inside)
	}
	if s.made != nil {
		s.made(s.steps)
	}
}

// encode encodes a plan, with times if someone wants them.
func (s *stopwatch) encode(p *plan.Plan, f plan.Features) (*plan.Code, error) {
	if s.to == nil {
		return p.Encode(f)
	}
	return p.EncodeTraced(f)
}

// conversation is one that can hold times if someone wants them.
func (s *stopwatch) conversation(p *plan.Plan, interval time.Duration) (*conversation, error) {
	c, err := newConversation(p, interval)
	if err == nil && s.to != nil {
		c.buf = make([]byte, reportTraced)
	}
	return c, err
}

// logSteps tells who wants to know what a plan is going to do.
func (e *Engine) logSteps(what string, p *plan.Plan) {
	if !e.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for i, op := range p.Ops {
		e.log.Debug(op.String(), "for", what, "step", i+1)
	}
}
