package upstream

import (
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/tools/cache"
)

// gate gives one controller the shared informers, and its handlers the events only when it has been
// made.
//
// Upstream's constructors add handlers before they have set all fields, since upstream starts
// informers after all constructors. Here most informers run already: a handler would be called at
// once, find no lister, and panic; the event would be lost. What belongs to a controller that has
// ended is removed from the informers.
//
// To give controllers another group of informers, add a method for it.
type gate struct {
	shared informers.SharedInformerFactory
	made   chan struct{} // closed when it is decided whether events pass
	passes atomic.Bool

	mu    sync.Mutex
	added []func()
}

func newGate(shared informers.SharedInformerFactory) *gate {
	return &gate{shared: shared, made: make(chan struct{})}
}

func (g *gate) Apps() apps.Interface { return apps.New(g, metav1.NamespaceAll, nil) }
func (g *gate) Autoscaling() autoscaling.Interface {
	return autoscaling.New(g, metav1.NamespaceAll, nil)
}
func (g *gate) Batch() batch.Interface         { return batch.New(g, metav1.NamespaceAll, nil) }
func (g *gate) Core() core.Interface           { return core.New(g, metav1.NamespaceAll, nil) }
func (g *gate) Discovery() discovery.Interface { return discovery.New(g, metav1.NamespaceAll, nil) }

func (g *gate) Policy() policy.Interface     { return policy.New(g, metav1.NamespaceAll, nil) }
func (g *gate) Resource() resource.Interface { return resource.New(g, metav1.NamespaceAll, nil) }
func (g *gate) Storage() storage.Interface   { return storage.New(g, metav1.NamespaceAll, nil) }

// gate is what the groups' informers are made of:

// InformerFor implements internalinterfaces.SharedInformerFactory.
func (g *gate) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return gatedInformer{g.shared.InformerFor(obj, make), g}
}

// InformerName implements internalinterfaces.SharedInformerFactory.
func (g *gate) InformerName() *cache.InformerName { return g.shared.InformerName() }

// Start implements internalinterfaces.SharedInformerFactory.
func (g *gate) Start(stop <-chan struct{}) { g.shared.Start(stop) }

// open lets events pass: the controller has been made.
func (g *gate) open() {
	g.passes.Store(true)
	close(g.made)
}

// remove ends all handlers: the controller has ended, or could not be made.
func (g *gate) remove() {
	if !g.passes.Swap(false) {
		close(g.made)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, remove := range g.added {
		remove()
	}
	g.added = nil
}

// gatedInformer is an informer whose handlers are behind a gate.
type gatedInformer struct {
	cache.SharedIndexInformer
	gate *gate
}

// AddEventHandler implements cache.SharedInformer.
func (i gatedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (i gatedInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler,
	every time.Duration,
) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &every})
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i gatedInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler,
	o cache.HandlerOptions,
) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := i.SharedIndexInformer.AddEventHandlerWithOptions(gatedHandler{h, i.gate}, o)
	if err == nil {
		i.gate.mu.Lock()
		defer i.gate.mu.Unlock()
		i.gate.added = append(i.gate.added, func() { _ = i.RemoveEventHandler(registration) }) // it fails if the informer has stopped
	}
	return registration, err
}

// gatedHandler is a handler that waits until the gate is open.
type gatedHandler struct {
	cache.ResourceEventHandler
	gate *gate
}

func (h gatedHandler) pass() bool {
	<-h.gate.made
	return h.gate.passes.Load()
}

// OnAdd implements cache.ResourceEventHandler.
func (h gatedHandler) OnAdd(obj any, initial bool) {
	if h.pass() {
		h.ResourceEventHandler.OnAdd(obj, initial)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (h gatedHandler) OnUpdate(old, obj any) {
	if h.pass() {
		h.ResourceEventHandler.OnUpdate(old, obj)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (h gatedHandler) OnDelete(obj any) {
	if h.pass() {
		h.ResourceEventHandler.OnDelete(obj)
	}
}
