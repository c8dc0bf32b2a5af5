package policy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// ClusterNetworkPolicies, which exist in the API when someone has installed their definition.
var (
	clusterVersion = schema.GroupVersion{Group: policyv1alpha2.GroupName, Version: "v1alpha2"}
	clusterKind    = clusterVersion.WithKind("ClusterNetworkPolicy")
)

const (
	clusterResource   = "clusternetworkpolicies"
	clusterDefinition = clusterResource + "." + policyv1alpha2.GroupName
)

// clusterPolicies watches ClusterNetworkPolicies while their definition exists. Without it, there
// is one watch for the definition, which tells nothing.
type clusterPolicies struct {
	*Policy
	definition cache.ListerWatcher // the definition, if it exists
	objects    cache.ListerWatcher
	write      func(ctx context.Context, name, manager string, body []byte) error

	known   chan struct{}    // closed when it is known which policies there are
	release func()           // closes known
	forbid  *time.Timer      // runs while the definition is forbidden; with mu
	trouble map[string]error // what keeps policies from being known, by its part; with mu
	served  *objectWatch     // nil while the API has no such policies; of the definition's watch
	status  statuses
	nodes   *nodeWatch // nil unless conditions of nodes that are gone are removed
}

func newClusterPolicies(p *Policy) *clusterPolicies {
	known := make(chan struct{})
	return &clusterPolicies{
		Policy: p, known: known, release: sync.OnceFunc(func() { close(known) }), trouble: map[string]error{}, status: newStatuses(),
	}
}

// use has the API read, and the status of policies written, as config says. It makes no call.
func (c *clusterPolicies) use(config *rest.Config) error {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{apiextensionsv1.AddToScheme, policyv1alpha2.Install} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	client := func(version schema.GroupVersion) (*rest.RESTClient, error) {
		config := rest.CopyConfig(config)
		config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/apis", &version, codecs
		config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
		return rest.RESTClientFor(config)
	}
	definitions, err := client(apiextensionsv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	policies, err := client(clusterVersion)
	if err != nil {
		return err
	}
	only := fields.OneTermEqualSelector("metadata.name", clusterDefinition)
	c.definition = c.tellDefinition(cache.NewListWatchFromClient(definitions, "customresourcedefinitions", "", only))
	c.objects = c.tellObjects(cache.NewListWatchFromClient(policies, clusterResource, "", fields.Everything()))
	c.write = func(ctx context.Context, name, manager string, body []byte) error {
		return applyStatus(ctx, policies, name, manager, body)
	}
	return nil
}

// Name implements cache.DoneChecker.
func (c *clusterPolicies) Name() string { return "ClusterNetworkPolicies" }

// Done implements cache.DoneChecker.
func (c *clusterPolicies) Done() <-chan struct{} { return c.known }

// run watches until ctx ends.
func (c *clusterPolicies) run(ctx context.Context) {
	store := &definitionStore{clusterPolicies: c, ctx: ctx}
	cache.NewReflectorWithOptions(c.definition, &apiextensionsv1.CustomResourceDefinition{}, store, cache.ReflectorOptions{
		Name: "policy: definition of ClusterNetworkPolicies",
	}).RunWithContext(ctx)
	if c.served != nil {
		c.served.end()
	}
	c.allowed()
}

// definitionStore is what the watch of the definition tells.
type definitionStore struct {
	*clusterPolicies
	ctx context.Context //nolint:containedctx // of the watch, which calls the store
}

// Add implements cache.ReflectorStore.
func (s *definitionStore) Add(obj any) error {
	d, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return fmt.Errorf("definition of ClusterNetworkPolicies: a %T", obj)
	}
	s.serve(s.serves(d))
	return nil
}

// Update implements cache.ReflectorStore.
func (s *definitionStore) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *definitionStore) Delete(any) error {
	s.gone()
	return nil
}

func (s *definitionStore) gone() {
	s.troubled(versionPart, nil)
	s.serve(false)
}

// Replace implements cache.ReflectorStore.
func (s *definitionStore) Replace(list []any, _ string) error {
	if len(list) == 0 {
		s.gone()
		return nil
	}
	return s.Add(list[0])
}

// Resync implements cache.ReflectorStore.
func (s *definitionStore) Resync() error { return nil }

// serves says whether the API has the policies in the version that is read here.
func (s *definitionStore) serves(d *apiextensionsv1.CustomResourceDefinition) bool {
	if !slices.ContainsFunc(d.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	}) {
		return false
	}
	if slices.ContainsFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == clusterVersion.Version && v.Served
	}) {
		s.troubled(versionPart, nil)
		return true
	}
	s.troubled(versionPart, fmt.Errorf("the definition of ClusterNetworkPolicies does not serve version %s: install that of "+
		"sigs.k8s.io/network-policy-api 0.2.0", clusterVersion.Version))
	return false
}

// serve starts or ends the watch of the policies.
func (s *definitionStore) serve(yes bool) {
	switch {
	case yes && s.served == nil:
		s.served = s.watchObjects(s.ctx)
	case !yes:
		if s.served != nil {
			s.served.end()
			s.served.forget()
			s.served = nil
			s.troubled(objectsPart, nil)
		}
		s.release()
	}
}

// objectWatch is the watch of the policies.
type objectWatch struct {
	*clusterPolicies
	stop  context.CancelFunc
	done  chan struct{}
	names map[string]bool
}

func (c *clusterPolicies) watchObjects(ctx context.Context) *objectWatch {
	ctx, stop := context.WithCancel(ctx)
	w := &objectWatch{clusterPolicies: c, stop: stop, done: make(chan struct{}), names: map[string]bool{}}
	reflector := cache.NewReflectorWithOptions(c.objects, &policyv1alpha2.ClusterNetworkPolicy{}, w, cache.ReflectorOptions{
		Name: "policy: ClusterNetworkPolicies",
	})
	go func() {
		defer close(w.done)
		reflector.RunWithContext(ctx)
	}()
	return w
}

// end returns when nothing more will be told.
func (w *objectWatch) end() {
	w.stop()
	<-w.done
}

// forget forgets all policies.
func (w *objectWatch) forget() { _ = w.Replace(nil, "") }

// objectWatch is the reflector's store:

// Add implements cache.ReflectorStore.
func (w *objectWatch) Add(obj any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set(obj)
}

// Update implements cache.ReflectorStore.
func (w *objectWatch) Update(obj any) error { return w.Add(obj) }

// Delete implements cache.ReflectorStore.
func (w *objectWatch) Delete(obj any) error {
	o, ok := object[*policyv1alpha2.ClusterNetworkPolicy](obj)
	if !ok {
		return fmt.Errorf("ClusterNetworkPolicy: a %T", obj)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delete(o.Name)
	return nil
}

// Replace implements cache.ReflectorStore: the list is all there is.
func (w *objectWatch) Replace(list []any, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.names
	w.names = map[string]bool{}
	for _, obj := range list {
		if err := w.set(obj); err != nil {
			return err
		}
	}
	for name := range before {
		if !w.names[name] {
			w.delete(name)
		}
	}
	w.release()
	return nil
}

// Resync implements cache.ReflectorStore.
func (w *objectWatch) Resync() error { return nil }

// set tells of a policy. The caller holds mu.
func (w *objectWatch) set(obj any) error {
	o, ok := obj.(*policyv1alpha2.ClusterNetworkPolicy)
	if !ok {
		return fmt.Errorf("ClusterNetworkPolicy: a %T", obj)
	}
	mine := *o
	mine.SetGroupVersionKind(clusterKind) // Events say it
	mine.ManagedFields = nil
	w.names[mine.Name] = true
	if w.state.SetClusterPolicy(&mine) {
		w.signal()
	}
	return nil
}

// delete tells that a policy is gone. The caller holds mu.
func (w *objectWatch) delete(name string) {
	delete(w.names, name)
	w.state.DeleteClusterPolicy(name)
	w.signal() // the last one may be gone
}
