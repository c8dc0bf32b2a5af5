// Package upstream runs controllers of k8s.io/kubernetes in the cluster process, as they are.
//
// Such a controller costs nothing until there is an object that needs it: only then it is made, with
// the informers that it asks for. It works until its context ends, also when there is no such object
// any more. A second reason to wait is that some constructors call the API, which has to serve by then.
package upstream

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// OnDemand is a controller that starts with the first object of a kind.
type OnDemand struct {
	name      string
	informers informers.SharedInformerFactory
	trigger   cache.SharedIndexInformer
	// make makes the controller and returns what runs it.
	make func(context.Context) (run func(context.Context), err error)
}

// Run waits for the first object, then has the controller work until ctx ends. The shared informers
// have to be started by their owner; those that only this controller needs are started here.
func (o *OnDemand) Run(ctx context.Context) {
	if !o.wanted(ctx) {
		return
	}
	run, err := o.make(ctx)
	if err != nil {
		slog.Error("controller cannot start", "controller", o.name, "err", err)
		return
	}
	o.informers.Start(ctx.Done())
	run(ctx)
}

// wanted waits until there is an object; it returns false if ctx ends before.
func (o *OnDemand) wanted(ctx context.Context) bool {
	found, once := make(chan struct{}), sync.Once{}
	registration, err := o.trigger.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { once.Do(func() { close(found) }) },
	})
	if err != nil { // the informer was stopped: the process is ending
		return false
	}
	defer func() { _ = o.trigger.RemoveEventHandler(registration) }()
	select {
	case <-found:
		return true
	case <-ctx.Done():
		return false
	}
}
