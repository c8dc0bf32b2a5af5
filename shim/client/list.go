package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/coracle-project/coracle/shim/api"
)

// UnansweredError is List's when shims of single pods have not answered. What the others have is
// listed.
type UnansweredError struct {
	Pods map[string]error // why, by pod id
}

func (e *UnansweredError) Error() string {
	pods := slices.Sorted(maps.Keys(e.Pods))
	return fmt.Sprintf("list containers: no answer for pods %s: %v", strings.Join(pods, ", "), e.Pods[pods[0]])
}

// Unwrap says that it is of the kind ErrUnavailable.
func (e *UnansweredError) Unwrap() error { return ErrUnavailable }

// List returns container ids by pod id, as the shims know them. The exits that they repeat at a
// start have come by then. All shims are asked at once, so that one that hangs costs the others
// nothing; if it is that of a pod, the error is an UnansweredError.
func (c *Client) List(ctx context.Context) (map[string][]string, error) {
	var (
		tasks  sync.WaitGroup
		mu     sync.Mutex
		all    = make(map[string][]string)
		silent = make(map[string]error)
	)
	for _, l := range c.all() {
		tasks.Go(func() {
			pods, err := l.list(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && c.has(l) {
				silent[l.name] = err
				return
			}
			for pod, ids := range pods {
				all[pod] = append(all[pod], ids...)
			}
		})
	}
	tasks.Wait()
	if err := silent[nodeShim]; err != nil { // it may have containers of any pod
		return nil, fmt.Errorf("list containers: %w", err)
	}
	if len(silent) > 0 {
		return all, &UnansweredError{Pods: silent}
	}
	return all, nil
}

// has says whether the shim is still one of ours: not after DeletePod.
func (c *Client) has(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.links[l.name] == l
}

// list asks once the shim has repeated its exits.
func (l *link) list(ctx context.Context) (map[string][]string, error) {
	if err := l.gone(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	select {
	case <-l.first:
	case <-ctx.Done():
		return nil, l.unavailable(ctx)
	}
	return list(ctx, l)
}

func list(ctx context.Context, l *link) (map[string][]string, error) {
	var pods map[string][]string
	err := l.again(ctx, func(ctx context.Context, k *conn) error {
		pods = make(map[string][]string)
		res, err := k.shim.List(ctx, &api.ListRequest{})
		for _, one := range res.GetContainers() {
			pods[one.PodId] = append(pods[one.PodId], one.Id)
		}
		return err
	})
	return pods, err
}
