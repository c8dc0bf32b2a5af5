package direct

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// watcher is a watch whose objects are in the API's version.
type watcher struct {
	read   *read
	from   watch.Interface
	kind   schema.GroupVersionKind
	events chan watch.Event
}

// Stop implements watch.Interface. It may be called more than once.
func (w *watcher) Stop() { w.read.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

func (w *watcher) run() {
	defer w.read.end()
	defer utilruntime.HandleCrash() // a conversion that panics ends the watch, not the process
	defer close(w.events)
	defer w.from.Stop()
	for {
		select {
		case e, ok := <-w.from.ResultChan():
			if !ok {
				return
			}
			e = w.convert(e)
			select {
			case w.events <- e:
			case <-w.read.ctx.Done():
				return
			}
		case <-w.read.ctx.Done():
			return
		}
	}
}

// convert returns an event for the API's readers. The receiver owns its object.
func (w *watcher) convert(e watch.Event) watch.Event {
	if e.Type == watch.Error {
		return e
	}
	obj := e.Object
	if shared, ok := obj.(runtime.CacheableObject); ok {
		obj = shared.GetObject() // a copy
	}
	out, err := convert(obj, w.kind)
	if err != nil {
		status := apierrors.NewInternalError(err).Status()
		return watch.Event{Type: watch.Error, Object: &status}
	}
	return watch.Event{Type: e.Type, Object: out}
}
