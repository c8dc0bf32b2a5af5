package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/integration/bench/quiet"
	"github.com/coracle-project/coracle/internal/testkit"
)

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
func inParallel(ctx context.Context, t *target, clients, times int,
	do func(context.Context, *client) error,
) (took time.Duration, err error) {
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
func measureCrowd(ctx context.Context, t *target, o options) (err error) {
	c, err := t.up(ctx)
	if err != nil {
		return err
	}
	defer func() { err = joinDown(err, t) }()
	if err := c.warm(ctx, o.warm); err != nil {
		return err
	}
	pods, took, err := together(ctx, t, o.clients, o.crowd)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("start of %d pods by %d clients, s", o.crowd, o.clients), took.Seconds())
	if _, err := quiet.Rest(ctx); err != nil { // among so many pods some runtimes are never quiet
		return err
	}
	t.add(fmt.Sprintf("RSS of the daemon at %d pods, MB", o.crowd), float64(residentSize(t.pid()))/1024)
	if err := errors.Join(removeAll(ctx, c, pods), quiet.Wait(ctx)); err != nil {
		return err
	}
	took, err = inParallel(ctx, t, o.clients, o.crowd, func(ctx context.Context, c *client) error {
		p, err := c.start(ctx)
		if err != nil {
			return err
		}
		return c.remove(ctx, p, 0)
	})
	t.add(fmt.Sprintf("%d pods' whole lives by %d clients, s", o.crowd, o.clients), took.Seconds())
	return err
}
