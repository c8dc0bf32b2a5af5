package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/extender"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// extended returns those of nodes that extenders leave, and gives misfit why not the others.
func (s *Scheduler) extended(ctx context.Context, pod *v1.Pod, nodes []*framework.NodeInfo,
	misfit *framework.Rejections,
) ([]*framework.NodeInfo, error) {
	for _, e := range s.extenders {
		if len(nodes) == 0 || !e.Filters() || !e.Wants(pod) {
			continue
		}
		left, err := e.Filter(ctx, pod, nodes, misfit.Set)
		switch {
		case err == nil:
			nodes = left
		case !e.Ignorable():
			return nil, err
		default:
			s.logIgnored("extender is ignored", pod, err)
		}
	}
	return nodes, nil
}

// logIgnored tells of an extender that failed, unless it is left alone: that would be told of each
// pod.
func (s *Scheduler) logIgnored(what string, pod *v1.Pod, err error) {
	level := slog.LevelWarn
	if errors.Is(err, extender.ErrSilent) {
		level = slog.LevelDebug
	}
	s.log.Log(context.Background(), level, what, "pod", pod.Namespace+"/"+pod.Name, "err", err)
}

// scoreExtended adds what extenders think to the scores of nodes. One that fails does not count, as
// with upstream's scheduler.
func (s *Scheduler) scoreExtended(ctx context.Context, pod *v1.Pod, nodes []*framework.NodeInfo, scores []int64) {
	var asked sync.WaitGroup
	answers := make([][]int64, len(s.extenders))
	for i, e := range s.extenders {
		if e.Scores() && e.Wants(pod) {
			asked.Go(func() {
				var err error
				if answers[i], err = e.Score(ctx, pod, nodes); err != nil {
					s.logIgnored("extender's scores do not count", pod, err)
				}
			})
		}
	}
	asked.Wait()
	for _, answer := range answers {
		for i, score := range answer {
			scores[i] += score
		}
	}
}

// binder returns the extender that binds pod, nil if plugins do.
func (s *Scheduler) binder(pod *v1.Pod) *extender.Extender {
	for _, e := range s.extenders {
		if e.Binds() && e.Wants(pod) {
			return e
		}
	}
	return nil
}

// bindExtended has an extender bind the pod.
func (b *binding) bindExtended(ctx context.Context, e *extender.Extender) *framework.Status {
	if err := e.Bind(ctx, b.info.Pod(), b.node); err != nil {
		return framework.Errored("", fmt.Errorf("bind: %w", err))
	}
	return nil
}

// preemptExtended implements framework.Handle.Preempt.
func (s *Scheduler) preemptExtended(ctx context.Context, pod *v1.Pod, nodes *framework.Snapshot,
	victims map[string]framework.Victims,
) (map[string]framework.Victims, error) {
	for _, e := range s.extenders {
		if len(victims) == 0 || !e.Preempts() || !e.Wants(pod) {
			continue
		}
		chosen, err := e.Preempt(ctx, pod, nodes, victims)
		switch {
		case err == nil:
			victims = chosen
		case !e.Ignorable():
			return nil, err
		default:
			s.logIgnored("extender is ignored", pod, err)
		}
	}
	return victims, nil
}
