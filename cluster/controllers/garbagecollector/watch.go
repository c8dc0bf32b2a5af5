package garbagecollector

import (
	"context"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/controllers/kinds"
)

// shared are the kinds that other controllers of the process watch in any case. The collector
// listens to their informers; a second watch would have the server encode each of the most
// frequent changes twice.
var shared = map[schema.GroupVersionResource]kinds.Resource{}

func init() {
	for _, r := range []struct {
		group, version, resource, kind string
		namespaced                     bool
	}{
		{"", "v1", "namespaces", "Namespace", false},
		{"", "v1", "nodes", "Node", false},
		{"", "v1", "pods", "Pod", true},
		{"", "v1", "services", "Service", true},
		{"", "v1", "serviceaccounts", "ServiceAccount", true},
		{"", "v1", "endpoints", "Endpoints", true},
		{"", "v1", "resourcequotas", "ResourceQuota", true},
		{"apps", "v1", "deployments", "Deployment", true},
		{"apps", "v1", "replicasets", "ReplicaSet", true},
		{"apps", "v1", "daemonsets", "DaemonSet", true},
		{"apps", "v1", "controllerrevisions", "ControllerRevision", true},
		{"batch", "v1", "jobs", "Job", true},
		{"discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true},
		{"rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", false},
		{"certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", false},
	} {
		gvr := schema.GroupVersionResource{Group: r.group, Version: r.version, Resource: r.resource}
		shared[gvr] = kinds.Resource{GroupVersionResource: gvr, Kind: r.kind, Namespaced: r.namespaced}
	}
}

// ignored are kinds that no one owns and that own no one, in numbers.
var ignored = sets.New(
	schema.GroupResource{Resource: "events"},
	schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
)

// definesKinds are the kinds whose objects decide which kinds there are.
var definesKinds = sets.New(
	schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	registrations,
)

// registrations are APIServices. Those of the API server's own groups have the label automanaged.
var registrations = schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}

const automanaged = "kube-aggregator.kubernetes.io/automanaged"

// listen feeds the graph from an informer that is shared with others, and returns what tells
// whether all that existed has arrived.
func (g *graph) listen(k *kind, factory informers.SharedInformerFactory) (cache.InformerSynced, error) {
	informer, err := factory.ForResource(k.GroupVersionResource)
	if err != nil {
		return nil, err
	}
	registration, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { g.observe(k, obj.(metav1.Object)) },
		UpdateFunc: func(_, obj any) { g.observe(k, obj.(metav1.Object)) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			g.forget(obj.(metav1.Object).GetUID())
		},
	})
	if err != nil {
		return nil, err
	}
	return registration.HasSynced, nil
}

// monitor watches the metadata of one kind and stores it nowhere but in the graph.
type monitor struct {
	kind   *kind
	graph  *graph
	synced atomic.Bool
	stop   context.CancelFunc
	done   chan struct{}
	// changed, if not nil, is called after each event.
	changed func()
}

// run watches until ctx ends.
func (m *monitor) run(ctx context.Context, client metadata.Interface) {
	resource := client.Resource(m.kind.GroupVersionResource)
	listWatch := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return resource.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return resource.Watch(ctx, options)
		},
	}, client)
	cache.NewReflectorWithOptions(listWatch, &metav1.PartialObjectMetadata{}, m, cache.ReflectorOptions{
		Name: "garbagecollector: " + m.kind.String(),
	}).RunWithContext(ctx)
}

// end stops the watch; its objects may or may not exist from now on.
func (m *monitor) end() {
	m.stop()
	<-m.done
	m.graph.abandon(m.kind)
}

// monitor is the reflector's store:

// Add implements cache.ReflectorStore.
func (m *monitor) Add(obj any) error {
	m.graph.observe(m.kind, obj.(metav1.Object))
	m.notify()
	return nil
}

// Update implements cache.ReflectorStore.
func (m *monitor) Update(obj any) error { return m.Add(obj) }

// Delete implements cache.ReflectorStore.
func (m *monitor) Delete(obj any) error {
	m.graph.forget(obj.(metav1.Object).GetUID())
	m.notify()
	return nil
}

// Replace implements cache.ReflectorStore: the list is all there is.
func (m *monitor) Replace(list []any, _ string) error {
	live := sets.New[types.UID]()
	for _, obj := range list {
		live.Insert(obj.(metav1.Object).GetUID())
		m.graph.observe(m.kind, obj.(metav1.Object))
	}
	m.graph.replace(m.kind, live)
	m.synced.Store(true)
	m.notify()
	return nil
}

// Resync implements cache.ReflectorStore.
func (m *monitor) Resync() error { return nil }

func (m *monitor) notify() {
	if m.changed != nil {
		m.changed()
	}
}
