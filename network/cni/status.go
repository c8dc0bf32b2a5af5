package cni

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/coracle-project/coracle/internal/join"
)

// StatusCalls asks plugins for their status. The kubelet asks every few seconds and does not wait
// long. A caller that asks during a call joins it, so a plugin that hangs runs once.
type StatusCalls struct {
	calls join.Group[struct{}]
	life  context.Context // until close
	end   context.CancelFunc
	limit time.Duration // statusLimit, but in tests

	mu   sync.Mutex // between work.Add and close
	work sync.WaitGroup
}

func NewStatusCalls(limit time.Duration) *StatusCalls {
	a := &StatusCalls{limit: limit}
	a.life, a.end = context.WithCancel(context.Background())
	return a
}

// ErrClosed says why plugins are not asked.
var ErrClosed = errors.New("the daemon is shutting down")

// Status asks the plugins of a list whether they could connect a pod now (CNI 1.1; those of an
// older version are not executed for it).
func (a *StatusCalls) Status(ctx context.Context, at *Plugins, list *libcni.NetworkConfigList) error {
	config, err := Complete(list)
	if err != nil {
		return fmt.Errorf("%w: CNI network %q: %w", ErrConfig, list.Name, err)
	}
	// Another configuration, or other plugins, have another status.
	key := strings.Join(at.BinDirs, ":") + "\n" + string(config)
	_, err = a.calls.Do(ctx, key, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, a.ask(ctx, at, list)
	})
	switch {
	case err == nil:
		return nil
	case a.life.Err() != nil:
		err = ErrClosed // which has killed the plugins, if they were asked before
	case ctx.Err() != nil:
		return fmt.Errorf("CNI network %q: waiting for the status of its plugins: %w", list.Name, err)
	}
	return fmt.Errorf("CNI network %q is not ready: %w", list.Name, err)
}

func (a *StatusCalls) ask(ctx context.Context, at *Plugins, list *libcni.NetworkConfigList) error {
	a.mu.Lock()
	if a.life.Err() != nil {
		a.mu.Unlock()
		return ErrClosed
	}
	a.work.Add(1)
	a.mu.Unlock()
	defer a.work.Done()
	ctx, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	defer context.AfterFunc(a.life, cancel)()
	return at.Lib.GetStatusNetworkList(ctx, list)
}

// Close stops the plugins that are being asked, and waits until they have ended.
func (a *StatusCalls) Close() {
	a.mu.Lock()
	a.end()
	a.mu.Unlock()
	a.work.Wait()
}
