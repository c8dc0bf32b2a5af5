// Package upstream runs controllers of k8s.io/kubernetes in the cluster process, as they are.
//
// Such a controller costs nothing until there is an object that needs it: only then is it made,
// with the informers that it asks for. It works until its context ends, even if the last such
// object has gone before. Which controllers are imported, and which are ours:
// docs/decisions/imported-controllers.md.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// workers is how many objects each controller works on at a time, upstream's default for all of
// them.
const workers = 5

// worked is how long a controller works until its next failure has nothing to do with the last one:
// the pause after it is short again.
const worked = 10 * time.Minute

// OnDemand is a controller that starts with the first object of a kind that needs it.
type OnDemand struct {
	name      string
	log       *slog.Logger
	informers informers.SharedInformerFactory
	trigger   cache.SharedIndexInformer
	// also are further kinds that the controller starts with.
	also []cache.SharedIndexInformer
	// needs says whether an object of these kinds needs the controller; nil if each does.
	needs func(object any) bool
	// make makes the controller on the informers behind the gate, and returns what runs it.
	make func(context.Context, *gate) (run func(context.Context), err error)
}

// NewOnDemand returns a controller of ours that starts as the imported ones do: with the first
// object of a trigger's kind that needs says it is for.
func NewOnDemand(set *client.Set, name string, needs func(object any) bool, build func() (*frame.Controller, error),
	trigger cache.SharedIndexInformer, also ...cache.SharedIndexInformer,
) *OnDemand {
	return &OnDemand{
		name: name, log: set.Logger(), informers: set.Informers, trigger: trigger, also: also, needs: needs,
		make: func(context.Context, *gate) (func(context.Context), error) {
			c, err := build()
			if err != nil {
				return nil, err
			}
			return c.Run, nil
		},
	}
}

// Run waits for the first object, then has the controller work until ctx ends. The shared informers
// have to be started by their owner; those that only this controller needs are started here. A
// controller that cannot be made, panics or ends too early is made again after a pause.
func (o *OnDemand) Run(ctx context.Context) {
	if !o.wanted(ctx) {
		return
	}
	first := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: 5 * time.Minute}
	pause := first
	for {
		began := time.Now()
		err := o.work(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= worked {
			pause = first
		}
		again := pause.Step()
		o.log.Error("controller does not work", "controller", o.name, "err", err, "again", again)
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

// work makes the controller and returns when it has ended.
func (o *OnDemand) work(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	working, stop := context.WithCancel(ctx)
	defer stop() // what a controller that panicked has started
	events := newGate(o.informers)
	defer events.remove()
	run, err := o.made(working, events)
	if err != nil {
		return err
	}
	events.open()
	o.informers.Start(ctx.Done())
	run(working)
	return errors.New("it ended by itself")
}

// making is held while a controller is made. Constructors look for indexers of informers that they
// share and add them, and client-go lets only one do so at a time.
var making sync.Mutex

func (o *OnDemand) made(ctx context.Context, events *gate) (run func(context.Context), err error) {
	making.Lock()
	defer making.Unlock()
	return o.make(ctx, events)
}

// with has others run next to a controller, until it ends.
func with(run func(context.Context), others ...func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		ctx, stop := context.WithCancel(ctx)
		var running wait.Group
		defer running.Wait()
		defer stop()
		for _, other := range others {
			running.StartWithContext(ctx, other)
		}
		run(ctx)
	}
}

// wanted waits until there is such an object; it returns false if ctx ends before.
func (o *OnDemand) wanted(ctx context.Context) bool {
	found, once := make(chan struct{}), sync.Once{}
	look := func(object any) {
		if o.needs == nil || o.needs(object) {
			once.Do(func() { close(found) })
		}
	}
	for _, trigger := range append([]cache.SharedIndexInformer{o.trigger}, o.also...) {
		registration, err := trigger.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: look, UpdateFunc: func(_, object any) { look(object) },
		})
		if err != nil { // the informer was stopped: the process is ending
			return false
		}
		defer func() { _ = trigger.RemoveEventHandler(registration) }()
	}
	select {
	case <-found:
		return true
	case <-ctx.Done():
		return false
	}
}
