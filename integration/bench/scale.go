package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/integration/bench/quiet"
)

// How measureScale goes: among so many pods, the peers' last is less, starts and lists are
// measured.
var (
	ourScale   = []int{10, 500, 1000}
	peersScale = []int{10, 500}
)

// restMargin is how many times more CPUs than at rest may be in use when a run begins.
const restMargin = 1.5

// lists is how often a list is asked for in one run.
const lists = 20

// measureScale has only this runtime up. It fills the node once; the runs follow each other among
// as many pods.
func measureScale(ctx context.Context, t *target, o options) (err error) {
	c, err := t.up(ctx)
	if err != nil {
		return err
	}
	defer func() { err = joinDown(err, t) }()
	if err := c.warm(ctx, o.warm); err != nil {
		return err
	}
	sizes := peersScale
	if !t.peer {
		sizes = ourScale
	}
	var held []*pod
	for _, size := range sizes {
		more, _, err := together(ctx, t, o.clients, size-len(held))
		held = append(held, more...)
		if err != nil {
			return err
		}
		inUse, err := quiet.Rest(ctx)
		if err != nil {
			return err
		}
		if size > sizes[0] {
			t.add(fmt.Sprintf("CPUs in use at rest among %d pods", size), inUse)
		}
		for range o.runs {
			if err := t.among(ctx, size, o.n, max(quiet.Busy, restMargin*inUse)); err != nil {
				return err
			}
		}
		t.say("among %d pods: start %.1f ms", size, page.Quantile(page.Values(t.figures, t.name, amongName(size)), .5))
	}
	slices.Reverse(held)
	return removeAll(ctx, c, held)
}

func amongName(pods int) string { return fmt.Sprintf("pod start among %d pods, ms", pods) }

// among measures one run of n starts, and of lists if there are many pods. The pods that it has
// started are removed at its end: how much of a teardown still goes on is not what is asked. The
// next begins when fewer than inUse CPUs are in use.
func (t *target) among(ctx context.Context, pods, n int, inUse float64) error {
	var took []float64
	var more []*pod
	for range n {
		p, err := t.client.start(ctx)
		if err != nil {
			return err
		}
		more, took = append(more, p), append(took, p.took[podStart])
	}
	t.add(amongName(pods), page.Quantile(took, .5))
	if err := errors.Join(removeAll(ctx, t.client, more), quiet.Below(ctx, inUse)); err != nil {
		return err
	}
	if pods == ourScale[0] {
		return nil
	}
	for _, l := range []struct {
		call string
		list func() (int, error)
	}{
		{"ListPodSandbox", func() (int, error) {
			r, err := t.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			return len(r.GetItems()), err
		}},
		{"ListContainers", func() (int, error) {
			r, err := t.client.ListContainers(ctx, &cri.ListContainersRequest{})
			return len(r.GetContainers()), err
		}},
	} {
		took = took[:0]
		for range lists {
			began := time.Now()
			n, err := l.list()
			if took = append(took, ms(time.Since(began))); err == nil && n != pods {
				err = fmt.Errorf("%s has %d of %d", l.call, n, pods)
			}
			if err != nil {
				return err
			}
		}
		t.add(fmt.Sprintf("%s of %d, ms", l.call, pods), page.Quantile(took, .5))
	}
	return nil
}
