package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// sweep is how many pods wait when those that are gone are let go of.
	sweep int
}

// held is a pod that waits. It is not the pod itself: an API server that does not serve what is
// read keeps the gate closed forever.
type held struct {
	namespace, name string
	plugin          string // that keeps it in the queue, not tried; "" if it is tried
}

// minSweep is for how many pods that wait it is worth looking which are gone.
const minSweep = 64

func newGate(h *framework.Handle, what string, prepare func(context.Context) ([]toolscache.DoneChecker, error)) *gate {
	return &gate{h: h, what: what, prepare: prepare, err: errClosed, waiting: make(map[types.UID]held), sweep: minSweep}
}

// closed returns why the gate is not open, to the cycle of pod, which then is tried again when that
// changes. It opens the gate, too: a profile may not ask the plugins before they enqueue a pod.
func (g *gate) closed(pod *v1.Pod) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		g.waitLocked(pod, "")
	}
	return g.err
}

// admit keeps a pod waiting that comes before the gate is open. When that takes too long it lets
// pods through, for their cycles to tell why they wait.
func (g *gate) admit(plugin string, pod *v1.Pod) *framework.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.err == nil:
		return nil
	case !errors.Is(g.err, errClosed):
		g.waitLocked(pod, "")
		return nil
	}
	g.waitLocked(pod, plugin)
	return framework.NewStatus(framework.Unresolvable, plugin, "waiting for informers of "+g.what)
}

// waitLocked notes that pod waits, and opens the gate if nothing does yet.
func (g *gate) waitLocked(pod *v1.Pod, plugin string) {
	if !g.opening {
		g.opening = true
		g.h.Background(g.open)
	}
	g.waiting[pod.UID] = held{pod.Namespace, pod.Name, plugin}
	if len(g.waiting) < g.sweep {
		return
	}
	pods := g.h.Informers.Core().V1().Pods().Lister()
	for uid, w := range g.waiting {
		if p, err := pods.Pods(w.namespace).Get(w.name); uid != pod.UID && (err != nil || p.UID != uid) {
			delete(g.waiting, uid)
		}
	}
	g.sweep = max(minSweep, 2*len(g.waiting))
}

// open asks for the informers and opens the gate when they have synced.
func (g *gate) open(ctx context.Context) {
	checks, err := g.prepare(ctx)
	for err != nil {
		g.h.Log.Error("scheduler", "what", g.what, "err", err)
		g.set(err)
		select {
		case <-time.After(patience):
		case <-ctx.Done():
			return
		}
		checks, err = g.prepare(ctx)
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
	for uid, w := range waiting {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.name, UID: uid}}
		if w.plugin != "" {
			g.h.Reopened(pod, w.plugin)
		} else {
			g.h.Activate(pod)
		}
	}
}
