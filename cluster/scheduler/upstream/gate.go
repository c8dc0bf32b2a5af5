package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// patience is how long pods wait for informers without a word. It takes milliseconds, unless the
// API server has trouble or does not serve what they read.
const patience = 10 * time.Second

var errClosed = errors.New("informers have not synced yet")

// gate keeps pods waiting until what some plugins read is there. The first pod opens it.
type gate struct {
	h *framework.Handle
	// what is read, for messages; prepare asks for its informers.
	what    string
	prepare func(context.Context) ([]toolscache.DoneChecker, error)

	mu      sync.Mutex
	opening bool
	err     error // why it is not open; nil once it is
	waiting map[types.UID]held
}

// held is a pod that waits, and the plugin that keeps it.
type held struct {
	pod    *v1.Pod
	plugin string
	parked bool // and not tried
}

func newGate(h *framework.Handle, what string, prepare func(context.Context) ([]toolscache.DoneChecker, error)) *gate {
	return &gate{h: h, what: what, prepare: prepare, err: errClosed, waiting: make(map[types.UID]held)}
}

// closed returns why the gate is not open.
func (g *gate) closed() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// admit keeps a pod waiting that comes before the gate is open. When that takes too long it lets
// pods through, for their cycles to tell why they wait.
func (g *gate) admit(plugin string, pod *v1.Pod) *framework.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return nil
	}
	if !g.opening {
		g.opening = true
		g.h.Background(g.open)
	}
	parked := errors.Is(g.err, errClosed)
	g.waiting[pod.UID] = held{pod, plugin, parked}
	if !parked {
		return nil
	}
	return framework.NewStatus(framework.Unresolvable, plugin, "waiting for informers of "+g.what)
}

// open asks for the informers and opens the gate when they have synced.
func (g *gate) open(ctx context.Context) {
	checks, err := g.prepare(ctx)
	if err != nil {
		slog.Error("scheduler", "what", g.what, "err", err)
		g.set(err)
		return
	}
	g.h.Informers.Start(ctx.Done())
	soon, cancel := context.WithTimeout(ctx, patience)
	synced := toolscache.WaitFor(soon, "", checks...)
	cancel()
	if !synced && ctx.Err() == nil {
		g.set(fmt.Errorf("informers of %s have not synced for %s: see that the API server works and serves them", g.what, patience))
		synced = toolscache.WaitFor(ctx, "", checks...)
	}
	if synced {
		g.set(nil)
	}
}

// set says whether the gate is open, and has the pods tried that wait.
func (g *gate) set(err error) {
	g.mu.Lock()
	g.err = err
	waiting := g.waiting
	g.waiting = make(map[types.UID]held)
	g.mu.Unlock()
	for _, w := range waiting {
		if w.parked {
			g.h.Reopened(w.pod, w.plugin)
		} else {
			g.h.Activate(w.pod)
		}
	}
}
