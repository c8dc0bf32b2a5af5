// Package metatest shows the API of apitest to controllers that treat all kinds of objects alike:
// through discovery and a metadata client, with what a real server does for the propagation of a
// deletion (finalizers orphan and foregroundDeletion) and with deletion of collections.
package metatest

import (
	"context"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	metadatafake "k8s.io/client-go/metadata/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
)

// Widgets are a kind that no scheme of client-go knows, as a custom resource.
var Widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// WidgetKind is their kind.
var WidgetKind = Widgets.GroupVersion().WithKind("Widget")

func init() {
	scheme.Scheme.AddKnownTypeWithName(WidgetKind, &metav1.PartialObjectMetadata{})
	scheme.Scheme.AddKnownTypeWithName(Widgets.GroupVersion().WithKind("WidgetList"), &metav1.PartialObjectMetadataList{})
}

// API is one API in memory, seen in the ways that these controllers need.
type API struct {
	*client.Set
	Metadata *metadatafake.FakeMetadataClient

	resources *ktesting.Fake // its Resources are what discovery tells
	kube      *fake.Clientset

	mu           sync.Mutex
	discoveryErr error
}

// Of returns the API that apitest's Set reaches, serving kinds of core, apps and batch, and
// Widgets if widgets is told.
func Of(set *client.Set, extra ...*metav1.APIResourceList) *API {
	a := &API{kube: set.Kube.(*fake.Clientset), resources: &ktesting.Fake{}, Metadata: &metadatafake.FakeMetadataClient{}}
	verbs := metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	list := func(gv string, resources ...metav1.APIResource) *metav1.APIResourceList {
		for i := range resources {
			if resources[i].Verbs == nil {
				resources[i].Verbs = verbs
			}
		}
		return &metav1.APIResourceList{GroupVersion: gv, APIResources: resources}
	}
	a.resources.Resources = append([]*metav1.APIResourceList{
		list("v1",
			metav1.APIResource{Name: "pods", Kind: "Pod", Namespaced: true},
			metav1.APIResource{Name: "pods/status", Kind: "Pod", Namespaced: true},
			metav1.APIResource{Name: "configmaps", Kind: "ConfigMap", Namespaced: true},
			metav1.APIResource{Name: "secrets", Kind: "Secret", Namespaced: true},
			metav1.APIResource{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}},
			metav1.APIResource{Name: "nodes", Kind: "Node"},
			metav1.APIResource{
				Name: "namespaces", Kind: "Namespace",
				Verbs: metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"},
			}),
		list("apps/v1",
			metav1.APIResource{Name: "deployments", Kind: "Deployment", Namespaced: true},
			metav1.APIResource{Name: "replicasets", Kind: "ReplicaSet", Namespaced: true}),
		list("batch/v1", metav1.APIResource{Name: "jobs", Kind: "Job", Namespaced: true}),
	}, extra...)
	copied := *set
	copied.Kube = withDiscovery{set.Kube, discovered{&discoveryfake.FakeDiscovery{Fake: a.resources}, a}}
	a.Set = &copied
	a.Metadata.AddReactor("*", "*", a.handle)
	a.Metadata.AddWatchReactor("*", func(action ktesting.Action) (bool, watch.Interface, error) {
		w, err := a.kube.InvokesWatch(action)
		if err != nil {
			return true, nil, err
		}
		return true, watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
			e.Object = partial(e.Object)
			return e, true
		}), nil
	})
	return a
}

// WidgetList is what discovery tells of Widgets.
func WidgetList() *metav1.APIResourceList {
	return &metav1.APIResourceList{GroupVersion: Widgets.GroupVersion().String(), APIResources: []metav1.APIResource{{
		Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: metav1.Verbs{"create", "delete", "get", "list", "patch", "watch"},
	}}}
}

type withDiscovery struct {
	kubernetes.Interface
	discovery discovery.DiscoveryInterface
}

// IsWatchListSemanticsUnSupported has informers list, since the fake cannot stream what exists.
func (w withDiscovery) IsWatchListSemanticsUnSupported() bool { return true }

func (w withDiscovery) Discovery() discovery.DiscoveryInterface { return w.discovery }

func (w withDiscovery) CoreV1() typedcorev1.CoreV1Interface { return &coreV1{w.Interface.CoreV1()} }

type coreV1 struct{ typedcorev1.CoreV1Interface }

func (c *coreV1) Namespaces() typedcorev1.NamespaceInterface {
	return &namespaces{c.CoreV1Interface.Namespaces()}
}

// NamespaceFinalizer, in the metadata of a test's namespace, keeps it from going before its spec's
// finalizers have gone, which apitest knows nothing of.
const NamespaceFinalizer = "metatest.example.com/spec-finalizers"

type namespaces struct{ typedcorev1.NamespaceInterface }

// Finalize does what a server does with that subresource.
func (n *namespaces) Finalize(ctx context.Context, ns *corev1.Namespace, options metav1.UpdateOptions) (*corev1.Namespace, error) {
	ns = ns.DeepCopy()
	if len(ns.Spec.Finalizers) == 0 {
		ns.Finalizers = slices.DeleteFunc(ns.Finalizers, func(f string) bool { return f == NamespaceFinalizer })
	}
	return n.Update(ctx, ns, options)
}

// discovered adds what client-go's fake leaves out.
type discovered struct {
	*discoveryfake.FakeDiscovery
	api *API
}

func (d discovered) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	d.api.mu.Lock()
	defer d.api.mu.Unlock()
	groups, lists, err := d.FakeDiscovery.ServerGroupsAndResources()
	if err == nil {
		err = d.api.discoveryErr
	}
	return groups, lists, err
}

func (d discovered) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	d.api.mu.Lock()
	defer d.api.mu.Unlock()
	whole := discovery.ResourcePredicateFunc(func(_ string, r *metav1.APIResource) bool { return !strings.Contains(r.Name, "/") })
	return discovery.FilteredBy(whole, d.Resources), d.api.discoveryErr
}

func (d discovered) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	all, err := d.ServerPreferredResources()
	return discovery.FilteredBy(discovery.ResourcePredicateFunc(func(_ string, r *metav1.APIResource) bool { return r.Namespaced }), all), err
}

func partial(obj runtime.Object) *metav1.PartialObjectMetadata {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(err)
	}
	p := meta.AsPartialObjectMetadata(m).DeepCopy()
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err == nil {
		p.SetGroupVersionKind(kinds[0])
	}
	return p
}

// Serve has discovery tell of these resources from now on, with err (nil for none) for the rest.
func (a *API) Serve(lists []*metav1.APIResourceList, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resources.Resources, a.discoveryErr = lists, err
}

// Served returns what discovery tells.
func (a *API) Served() []*metav1.APIResourceList {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.resources.Resources)
}

// Create makes an object of any kind.
func (a *API) Create(gvr schema.GroupVersionResource, obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	_, err = a.kube.Invokes(ktesting.NewCreateAction(gvr, m.GetNamespace(), obj), nil)
	return err
}

func (a *API) handle(action ktesting.Action) (bool, runtime.Object, error) {
	gvr, namespace := action.GetResource(), action.GetNamespace()
	switch action := action.(type) {
	case ktesting.ListActionImpl:
		objs, err := a.list(gvr, namespace)
		list := &metav1.List{}
		for _, obj := range objs {
			list.Items = append(list.Items, runtime.RawExtension{Object: partial(obj)})
		}
		return true, list, err
	case ktesting.DeleteActionImpl:
		return true, nil, a.delete(gvr, namespace, action.GetName(), action.DeleteOptions)
	case ktesting.DeleteCollectionActionImpl:
		objs, err := a.list(gvr, namespace)
		for _, obj := range objs {
			m, _ := meta.Accessor(obj)
			if err == nil {
				err = a.delete(gvr, m.GetNamespace(), m.GetName(), action.DeleteOptions)
			}
		}
		return true, nil, err
	}
	obj, err := a.kube.Invokes(action, nil)
	if err != nil || obj == nil {
		return true, nil, err
	}
	return true, partial(obj), nil
}

func (a *API) list(gvr schema.GroupVersionResource, namespace string) ([]runtime.Object, error) {
	var gvk schema.GroupVersionKind
	for _, list := range a.Served() {
		for _, r := range list.APIResources {
			if list.GroupVersion == gvr.GroupVersion().String() && r.Name == gvr.Resource {
				gvk = gvr.GroupVersion().WithKind(r.Kind)
			}
		}
	}
	list, err := a.kube.Invokes(ktesting.NewListAction(gvr, gvk, namespace, metav1.ListOptions{}), nil)
	if err != nil {
		return nil, err
	}
	if typed, ok := list.(*metav1.PartialObjectMetadataList); ok {
		var objs []runtime.Object
		for i := range typed.Items {
			objs = append(objs, &typed.Items[i])
		}
		return objs, nil
	}
	return meta.ExtractList(list)
}

// delete gives the object the finalizer that the propagation asks for, as a server does, and
// deletes it.
func (a *API) delete(gvr schema.GroupVersionResource, namespace, name string, options metav1.DeleteOptions) error {
	obj, err := a.kube.Invokes(ktesting.NewGetAction(gvr, namespace, name), nil)
	if err != nil {
		return err
	}
	m, _ := meta.Accessor(obj)
	uidMatches := options.Preconditions == nil || options.Preconditions.UID == nil || *options.Preconditions.UID == m.GetUID()
	if options.PropagationPolicy != nil && uidMatches {
		left := slices.DeleteFunc(slices.Clone(m.GetFinalizers()), func(f string) bool {
			return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
		})
		switch *options.PropagationPolicy {
		case metav1.DeletePropagationOrphan:
			left = append(left, metav1.FinalizerOrphanDependents)
		case metav1.DeletePropagationForeground:
			left = append(left, metav1.FinalizerDeleteDependents)
		}
		if !slices.Equal(left, m.GetFinalizers()) {
			m.SetFinalizers(left)
			if _, err := a.kube.Invokes(ktesting.NewUpdateAction(gvr, namespace, obj), nil); err != nil {
				return err
			}
		}
	}
	_, err = a.kube.Invokes(ktesting.NewDeleteActionWithOptions(gvr, namespace, name, options), nil)
	return err
}
