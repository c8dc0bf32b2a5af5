package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// crowd is what several clients at once get done.
type crowd struct {
	Pods    int `json:"pods"`
	Clients int `json:"clients"`
	// Seconds are from the first call until all pods run.
	Seconds float64 `json:"seconds"`
	// Lives are seconds in which as many pods are started, stopped and removed.
	Lives float64 `json:"lives_seconds"`
	// DaemonRSS is the daemon's resident size with them, in kB.
	DaemonRSS int64 `json:"daemon_rss_kb"`
}

// another is a client of the same runtime with a connection of its own.
func (t *target) another() (*client, error) {
	conn, err := testkit.NewCRI(t.socket)
	if err != nil {
		return nil, err
	}
	t.others++
	c := *t.client
	c.CRI, c.prefix, c.seq = conn, fmt.Sprintf("%sc%d", t.client.prefix, t.others), 0
	return &c, nil
}

// together has several clients start pods at once.
func together(ctx context.Context, t *target, clients, pods int) (all []*pod, took time.Duration, err error) {
	var mu sync.Mutex
	took, err = inParallel(ctx, t, clients, pods, func(ctx context.Context, c *client) error {
		p, err := c.start(ctx)
		if err == nil {
			mu.Lock()
			all = append(all, p)
			mu.Unlock()
		}
		return err
	})
	return all, took, err
}

// inParallel has several clients do something so many times together.
func inParallel(ctx context.Context, t *target, clients, times int, do func(context.Context, *client) error) (took time.Duration, err error) {
	list := make([]*client, clients)
	for i := range list {
		if list[i], err = t.another(); err != nil {
			return 0, err
		}
		defer list[i].Close()
	}
	next := make(chan struct{}, times)
	for range times {
		next <- struct{}{}
	}
	close(next)
	g, gctx := errgroup.WithContext(ctx)
	began := time.Now()
	for _, c := range list {
		g.Go(func() error {
			for range next {
				if err := do(gctx, c); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return time.Since(began), err
}

// removeAll removes pods, several at a time: how long it takes is not measured.
func removeAll(ctx context.Context, c *client, pods []*pod) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(10)
	for _, p := range pods {
		g.Go(func() error { return c.remove(ctx, p, grace) })
	}
	return g.Wait()
}

// measureCrowd has only this runtime up.
func measureCrowd(ctx context.Context, t *target, o options) (r *crowd, err error) {
	c, err := t.up(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinDown(err, t) }()
	for range o.warm {
		if _, err := c.life(ctx); err != nil {
			return nil, err
		}
	}
	pods, took, err := together(ctx, t, o.clients, o.crowd)
	if err != nil {
		return nil, err
	}
	if err := rest(ctx); err != nil {
		return nil, err
	}
	r = &crowd{Pods: o.crowd, Clients: o.clients, Seconds: took.Seconds(), DaemonRSS: residentSize(t.pid())}
	if err := errors.Join(removeAll(ctx, c, pods), rest(ctx)); err != nil {
		return nil, err
	}
	took, err = inParallel(ctx, t, o.clients, o.crowd, func(ctx context.Context, c *client) error {
		p, err := c.start(ctx)
		if err != nil {
			return err
		}
		return c.remove(ctx, p, 0)
	})
	r.Lives = took.Seconds()
	fmt.Fprintf(os.Stderr, "bench: %s: %d pods by %d clients in %.1f s, their whole lives in %.1f s\n", t.name, r.Pods, r.Clients, r.Seconds, r.Lives)
	return r, err
}

// scale is how a runtime does with many pods on the node.
type scale struct {
	// Few and Many are how many pods there were when the first of FewStart and ManyStart was measured; Listed when the lists were.
	Few       int    `json:"few"`
	Many      int    `json:"many"`
	Listed    int    `json:"listed"`
	FewStart  sample `json:"start_with_few_ms"`
	ManyStart sample `json:"start_with_many_ms"`
	// ListPods and ListContainers are calls whose answers have all of Listed.
	ListPods       sample `json:"list_pods_ms"`
	ListContainers sample `json:"list_containers_ms"`
}

// How measureScale goes: pods at which starts are measured, pods that are listed, and how often each is done.
const (
	fewPods    = 10
	manyPods   = 1000
	listedPods = 2000
	starts     = 60
	lists      = 100
)

// measureScale has only this runtime up.
func measureScale(ctx context.Context, t *target, o options) (r *scale, err error) {
	c, err := t.up(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinDown(err, t) }()
	r = &scale{Few: fewPods, Many: manyPods, Listed: listedPods}
	var held []*pod
	grow := func(to int) error {
		more, _, err := together(ctx, t, o.clients, to-len(held))
		held = append(held, more...)
		return errors.Join(err, rest(ctx))
	}
	// The pods are removed when all have been started: how much of a teardown still goes on is not what is asked.
	measureStarts := func() (sample, error) {
		var all []float64
		var more []*pod
		for range starts {
			p, err := c.start(ctx)
			if err != nil {
				return sample{}, err
			}
			more, all = append(more, p), append(all, p.took[podStart])
		}
		return sampleOf(all), errors.Join(removeAll(ctx, c, more), rest(ctx))
	}
	if err := grow(fewPods); err != nil {
		return nil, err
	}
	if r.FewStart, err = measureStarts(); err != nil {
		return nil, err
	}
	if err := grow(manyPods); err != nil {
		return nil, err
	}
	if r.ManyStart, err = measureStarts(); err != nil {
		return nil, err
	}
	if err := grow(listedPods); err != nil {
		return nil, err
	}
	if r.ListPods, err = measureList(func() (int, error) {
		l, err := c.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		return len(l.GetItems()), err
	}); err != nil {
		return nil, err
	}
	if r.ListContainers, err = measureList(func() (int, error) {
		l, err := c.ListContainers(ctx, &cri.ListContainersRequest{})
		return len(l.GetContainers()), err
	}); err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "bench: %s: pod start %.1f ms at %d pods, %.1f ms at %d; lists of %d: %.1f and %.1f ms\n",
		t.name, r.FewStart.P50, fewPods, r.ManyStart.P50, manyPods, listedPods, r.ListPods.P50, r.ListContainers.P50)
	return r, removeAll(ctx, c, held)
}

func measureList(list func() (int, error)) (sample, error) {
	var all []float64
	for range lists {
		began := time.Now()
		n, err := list()
		all = append(all, float64(time.Since(began).Microseconds())/1000)
		if err == nil && n != listedPods {
			err = fmt.Errorf("a list has %d of %d", n, listedPods)
		}
		if err != nil {
			return sample{}, err
		}
	}
	return sampleOf(all), nil
}
