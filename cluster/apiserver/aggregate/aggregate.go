// Package aggregate has other API servers serve some of a cluster's API groups, as kube-aggregator
// does.
//
// An APIService names a group and version, and the Service of the server that serves it. What
// kube-aggregator has for these objects is imported: their storage, whether such a server is
// available, the merging of what it says it serves, and the objects of the groups that are served
// here ("Local"). Ours is the way of a request to such a server, and that a server which is slow,
// or sends too much, costs only its own clients.
//
// A user who registers a group and version that is served in this process (metrics.k8s.io) wins.
// The exceptions are the built-in groups and apiregistration.k8s.io, which are always served here.
package aggregate

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	registrations "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	localstatus "k8s.io/kube-aggregator/pkg/controllers/status/local"
	statusmetrics "k8s.io/kube-aggregator/pkg/controllers/status/metrics"
	remotestatus "k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/kubernetes/pkg/controlplane/controller/crdregistration"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	// resync has kube-aggregator's controllers look at all APIServices again (upstream's value).
	// The one that asks servers whether they are there does so every 30 seconds.
	resync = 5 * time.Minute
	// syncPoll is how often the informer is looked at while the server starts.
	syncPoll = 2 * time.Millisecond
	// Workers of upstream's controllers: checks of servers wait for those, the others do not wait
	// long.
	checkers, workers = 5, 1
)

// Options are what an Aggregator needs of its API server. All are required.
type Options struct {
	// Loopback is how the API server calls itself.
	Loopback *rest.Config
	// Informers are those of the process, not started yet.
	Informers informers.SharedInformerFactory
	// Resolver says where a Service can be reached.
	Resolver remotestatus.ServiceResolver
	// ClientPair is the file of the certificate and key that tell other API servers who asks.
	ClientPair string
	// Discovery is what the API server says it serves.
	Discovery aggregated.ResourceManager
	// Log gets why other servers cannot be reached, for debugging.
	Log *slog.Logger
}

// Aggregator passes requests for APIs of other servers on to them.
type Aggregator struct {
	options Options

	clients   clientset.Interface
	informers registrations.SharedInformerFactory
	merger    apiserver.DiscoveryAggregationController
	seen      cache.InformerSynced // all APIServices that there are have routes
	remote    *remotestatus.AvailableConditionController
	local     *localstatus.AvailableConditionController
	register  func(context.Context) // see Register

	routes atomic.Pointer[routes]
	mu     sync.Mutex // held to replace routes
}

// routes are the ways to groups and versions that other servers serve. They are not changed, but
// replaced.
type routes map[schema.GroupVersion]*route

// availability is for all servers of the process, as upstream's registry of metrics.
var availability = sync.OnceValues(func() (*statusmetrics.Metrics, error) {
	m := statusmetrics.New()
	return m, m.Register(legacyregistry.Register, legacyregistry.CustomRegister)
})

// New returns an Aggregator that does nothing yet. Install must follow.
func New(o Options) (*Aggregator, error) {
	clients, err := clientset.NewForConfig(o.Loopback)
	if err != nil {
		return nil, err
	}
	a := &Aggregator{
		options: o, clients: clients, informers: registrations.NewSharedInformerFactory(clients, resync),
		merger: apiserver.NewDiscoveryManager(o.Discovery.WithSource(aggregated.AggregatorSource)),
	}
	a.routes.Store(&routes{})
	services := a.informers.Apiregistration().V1().APIServices()
	registration, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { a.set(obj.(*apiregistrationv1.APIService)) },
		UpdateFunc: func(_, obj any) { a.set(obj.(*apiregistrationv1.APIService)) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if s, ok := obj.(*apiregistrationv1.APIService); ok {
				a.drop(s)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	a.seen = registration.HasSynced
	available, err := availability()
	if err != nil {
		return nil, err
	}
	if a.local, err = localstatus.New(services, clients.ApiregistrationV1(), available); err != nil {
		return nil, err
	}
	a.remote, err = remotestatus.New(services, o.Informers.Core().V1().Services(), o.Informers.Discovery().V1().EndpointSlices(),
		clients.ApiregistrationV1(), nil, a.clientPair, o.Resolver, available)
	return a, err
}

// Install has server start what the Aggregator needs. Groups and versions that are served here are
// those in builtin and of crds. The server is not ready before the ways to all other servers are
// known; it does not wait for any of these.
func (a *Aggregator) Install(server *genericapiserver.GenericAPIServer, builtin []schema.GroupVersion,
	crds crdinformers.CustomResourceDefinitionInformer,
) error {
	services := a.informers.Apiregistration().V1().APIServices()
	registering := autoregister.NewAutoRegisterController(services, a.clients.ApiregistrationV1())
	for _, gv := range builtin {
		if s := localService(gv); s != nil {
			registering.AddAPIServiceToSyncOnStart(s)
			a.options.Discovery.SetGroupVersionPriority(metav1.GroupVersion(gv), int(s.Spec.GroupPriorityMinimum), int(s.Spec.VersionPriority))
		}
	}
	a.options.Discovery.SetGroupVersionPriority(apiserver.APIRegistrationGroupVersion, apiserver.APIRegistrationGroupPriority, 0)
	custom := crdregistration.NewCRDRegistrationController(crds, registering)
	a.register = func(ctx context.Context) {
		go custom.Run(workers, ctx.Done())
		all := make(chan struct{})
		go func() {
			custom.WaitForInitialSync()
			close(all)
		}()
		select {
		case <-all: // before, those of custom resources would be taken for left over
			registering.Run(workers, ctx.Done())
		case <-ctx.Done():
		}
	}
	known := make(chan struct{})
	if err := server.RegisterMuxAndDiscoveryCompleteSignal("APIServices", known); err != nil {
		return err
	}
	return server.AddPostStartHook("apiservices", func(ctx genericapiserver.PostStartHookContext) error {
		a.informers.Start(ctx.Done())
		err := wait.PollUntilContextCancel(ctx, syncPoll, true, func(context.Context) (bool, error) { return a.seen(), nil })
		if err != nil { // it is being stopped
			return nil
		}
		close(known)
		go a.merger.Run(ctx.Done(), nil)
		go a.remote.Run(checkers, ctx.Done())
		go a.local.Run(workers, ctx.Done())
		return nil
	})
}

// Register keeps the APIServices of the groups and versions that are served here, until ctx ends.
// No request waits for these, so neither does the server's readiness: at its first start they are
// all made.
func (a *Aggregator) Register(ctx context.Context) { a.register(ctx) }

// set takes over what an APIService says.
func (a *Aggregator) set(s *apiregistrationv1.APIService) {
	gv := schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
	if s.Spec.Service == nil || alwaysHere(gv) {
		a.drop(s)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	old := (*a.routes.Load())[gv]
	r := a.newRoute(s, old)
	a.replaceLocked(gv, r)
	if old == nil {
		// Until its server has been asked, clients are to know that there is something they do not
		// see. The garbage collector would otherwise take owners in this group for gone.
		found := a.options.Discovery.WithSource(aggregated.AggregatorSource)
		found.AddGroupVersion(gv.Group,
			apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale})
		found.SetGroupVersionPriority(metav1.GroupVersion(gv), int(s.Spec.GroupPriorityMinimum), int(s.Spec.VersionPriority))
	}
	a.merger.AddAPIService(s, a.asking(r))
}

// drop forgets the way to what an APIService was for.
func (a *Aggregator) drop(s *apiregistrationv1.APIService) {
	gv := schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
	a.mu.Lock()
	defer a.mu.Unlock()
	if (*a.routes.Load())[gv] != nil {
		a.replaceLocked(gv, nil)
		a.merger.RemoveAPIService(s.Name)
	}
}

// replaceLocked replaces the way to gv, nil for none.
func (a *Aggregator) replaceLocked(gv schema.GroupVersion, r *route) {
	all := maps.Clone(*a.routes.Load())
	old := all[gv]
	if r == nil {
		delete(all, gv)
	} else {
		all[gv] = r
	}
	a.routes.Store(&all)
	if old != nil && (r == nil || old.transport != r.transport) {
		old.close()
	}
}

// alwaysHere says whether no other server may serve gv. The server's own informers need the
// built-in groups: without one of them it would never be ready again.
func alwaysHere(gv schema.GroupVersion) bool {
	_, builtin := priorities[gv.Group]
	return builtin || gv.Group == apiregistrationv1.GroupName
}

// HasGroup says whether another server serves a version of group.
func (a *Aggregator) HasGroup(group string) bool {
	for gv := range *a.routes.Load() {
		if gv.Group == group {
			return true
		}
	}
	return false
}

// Documents returns the names of the OpenAPI v3 documents that other servers have, such as
// apis/GROUP/VERSION, as far as these are available.
func (a *Aggregator) Documents() (names []string) {
	for gv, r := range *a.routes.Load() {
		if r.available {
			names = append(names, "apis/"+gv.String())
		}
	}
	slices.Sort(names)
	return names
}

// Document returns what answers a request for the OpenAPI v3 document called name, if that is
// another server's.
func (a *Aggregator) Document(name string) (http.Handler, bool) {
	r := a.routeOf("/" + name)
	// Whatever is below is not a document: all users may read documents, but not what is at
	// ../../../../apis.
	if r == nil || name != "apis/"+r.spec.Group+"/"+r.spec.Version {
		return nil, false
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead || httpstream.IsUpgradeRequest(req) {
			http.Error(w, "a document can be read by GET and HEAD only", http.StatusMethodNotAllowed)
			return
		}
		a.pass(w, req, r)
	}), true
}

// Wrap passes on requests for what other servers serve, and leaves all others to next.
func (a *Aggregator) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r := a.routeOf(req.URL.Path); r != nil {
			a.pass(w, req, r)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// routeOf returns the route for a path /apis/GROUP/VERSION or below, nil if it is served here.
func (a *Aggregator) routeOf(path string) *route {
	all := *a.routes.Load()
	if len(all) == 0 {
		return nil
	}
	rest, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		return nil
	}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) < 2 {
		return nil
	}
	return all[schema.GroupVersion{Group: parts[0], Version: parts[1]}]
}
