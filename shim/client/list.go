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

// UnansweredError is the error of List if shims of single pods have not answered. The containers of
// the other pods are listed.
type UnansweredError struct {
	Pods map[string]error // why, by pod id
}

func (e *UnansweredError) Error() string {
	pods := slices.Sorted(maps.Keys(e.Pods))
	return fmt.Sprintf("list containers: no answer for pods %s: %v", strings.Join(pods, ", "), e.Pods[pods[0]])
}

// Unwrap makes it match ErrUnavailable.
func (e *UnansweredError) Unwrap() error { return ErrUnavailable }

// List returns container ids by pod id, as the shims know them. When it returns, the exits that the
// shims repeat at a start have been delivered. All shims are asked at once, so that one that hangs
// does not delay the others. If the shim of a single pod does not answer, the error is an
// UnansweredError.
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

// has reports whether the shim is still one of ours: not after DeletePod.
func (c *Client) has(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.links[l.name] == l
}

// list lists the containers of a shim once it has repeated its exits.
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
			pod := l.podOf(one)
			pods[pod] = append(pods[pod], one.Id)
		}
		return err
	})
	return pods, err
}

// podOf is a container's pod, empty if it is not known: the shim could not read its record. A
// pod's own shim has no others.
func (l *link) podOf(one *api.ListResponse_Container) string {
	if one.PodId == "" && l.name != nodeShim {
		return l.name
	}
	return one.PodId
}
