package garbagecollector

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/internal/metatest"
)

var (
	pods        = corev1.SchemeGroupVersion.WithResource("pods")
	configMaps  = corev1.SchemeGroupVersion.WithResource("configmaps")
	nodes       = corev1.SchemeGroupVersion.WithResource("nodes")
	replicaSets = appsv1.SchemeGroupVersion.WithResource("replicasets")
	deployments = appsv1.SchemeGroupVersion.WithResource("deployments")
)

// world is an API with a collector at work.
type world struct {
	*metatest.API
	*apitest.Server
	t         *testing.T
	collector *collector
}

// redefine has the collector see that definitions of kinds have changed.
func (w world) redefine() {
	w.collector.redefine()
	w.Settle()
}

// run runs f in a world in which before has happened before the collector starts.
func run(t *testing.T, before, f func(w world)) {
	t.Helper()
	var api *metatest.API
	var c *collector
	apitest.Ours(func(set *client.Set) *frame.Controller {
		api = metatest.Of(set)
		if before != nil {
			before(world{API: api, t: t})
		}
		c = newCollector(api.Set, api.Metadata, nil)
		return c.frame
	}).Run(t, func(t *testing.T, s *apitest.Server) {
		s.Pass(time.Second)
		f(world{api, s, t, c})
	})
}

func owner(gvk schema.GroupVersionKind, name string, blocks bool) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: name, UID: uid(name),
		BlockOwnerDeletion: &blocks,
	}
}

func uid(name string) types.UID { return types.UID("uid-" + name) }

func set(name string, blocks bool) metav1.OwnerReference {
	return owner(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), name, blocks)
}

func deployment(name string) metav1.OwnerReference {
	return owner(appsv1.SchemeGroupVersion.WithKind("Deployment"), name, true)
}

// make creates an object of any kind.
func (w world) make(gvr schema.GroupVersionResource, name string, owners ...metav1.OwnerReference) {
	w.t.Helper()
	m := metav1.ObjectMeta{Name: name, Namespace: apitest.Namespace, UID: uid(name), OwnerReferences: owners}
	var obj runtime.Object
	switch gvr {
	case pods:
		obj = &corev1.Pod{ObjectMeta: m}
	case configMaps:
		obj = &corev1.ConfigMap{ObjectMeta: m}
	case nodes:
		m.Namespace = ""
		obj = &corev1.Node{ObjectMeta: m}
	case replicaSets:
		obj = &appsv1.ReplicaSet{ObjectMeta: m}
	case deployments:
		obj = &appsv1.Deployment{ObjectMeta: m}
	default:
		p := &metav1.PartialObjectMetadata{ObjectMeta: m}
		p.SetGroupVersionKind(metatest.WidgetKind)
		obj = p
	}
	w.create(gvr, obj)
}

func (w world) create(gvr schema.GroupVersionResource, obj runtime.Object) {
	w.t.Helper()
	if err := w.Create(gvr, obj); err != nil {
		w.t.Fatal(err)
	}
}

func (w world) delete(gvr schema.GroupVersionResource, name string, policy metav1.DeletionPropagation) {
	w.t.Helper()
	if err := w.Metadata.Resource(gvr).Namespace(apitest.Namespace).Delete(context.Background(), name,
		metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		w.t.Fatal(err)
	}
	w.Settle()
}

// want checks which objects there are: "name" or "name<owner,owner" or "name! " for one that is
// being deleted.
func (w world) want(gvr schema.GroupVersionResource, want ...string) {
	w.t.Helper()
	list, err := w.Metadata.Resource(gvr).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var got []string
	for _, obj := range list.Items {
		text := obj.Name
		if obj.DeletionTimestamp != nil {
			text += "!"
		}
		for i, ref := range obj.OwnerReferences {
			text += map[bool]string{true: "<", false: ","}[i == 0] + ref.Name
		}
		got = append(got, text)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: there are %s, want %s", gvr.Resource, strings.Join(got, " "), strings.Join(want, " "))
	}
}

func TestDependentsGoWithTheirOwner(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(deployments, "web")
		w.make(replicaSets, "web-1", deployment("web"))
		w.make(pods, "web-1-a", set("web-1", true))
		w.make(pods, "web-1-b", set("web-1", true))
		w.make(pods, "other")
		w.Settle()
		w.want(pods, "other", "web-1-a<web-1", "web-1-b<web-1")
		w.delete(deployments, "web", metav1.DeletePropagationBackground)
		w.Pass(2 * time.Second)
		w.want(deployments)
		w.want(replicaSets)
		w.want(pods, "other")
	})
}

func TestDependentsGoFirstInForeground(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(deployments, "web")
		w.make(replicaSets, "web-1", deployment("web"))
		w.make(pods, "web-1-a", set("web-1", true))
		w.make(configMaps, "notes", deployment("web"))
		w.SetPod(w.t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: "web-1-a"}}, func(p *corev1.Pod) {
			p.Spec.NodeName = "node"
		})
		w.Settle()
		w.delete(deployments, "web", metav1.DeletePropagationForeground)
		w.Pass(time.Second)
		// The pod takes its grace, and everything above it waits.
		w.want(pods, "web-1-a!<web-1")
		w.want(replicaSets, "web-1!<web")
		w.want(deployments, "web!")
		w.want(configMaps)
		w.Leave(w.t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: "web-1-a"}})
		w.Pass(time.Second)
		w.want(pods)
		w.want(replicaSets)
		w.want(deployments)
	})
}

func TestNonBlockingDependentIsNotWaitedFor(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(replicaSets, "a")
		w.make(configMaps, "slow", set("a", false))
		w.Settle()
		// The finalizer of someone else keeps the dependent.
		w.finalize(configMaps, "slow")
		w.delete(replicaSets, "a", metav1.DeletePropagationForeground)
		w.Pass(time.Second)
		w.want(replicaSets)
		w.want(configMaps, "slow!<a")
	})
}

func TestOrphansStayWithoutTheirOwner(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(replicaSets, "a")
		w.make(replicaSets, "b")
		w.make(pods, "both", set("a", true), set("b", true))
		w.make(pods, "one", set("a", true))
		w.Settle()
		w.delete(replicaSets, "a", metav1.DeletePropagationOrphan)
		w.Pass(time.Second)
		w.want(replicaSets, "b")
		w.want(pods, "both<b", "one")
	})
}

func TestSecondOwnerKeepsADependent(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		t.Run(string(policy), func(t *testing.T) {
			run(t, nil, func(w world) {
				w.make(replicaSets, "a")
				w.make(replicaSets, "b")
				w.make(pods, "both", set("a", true), set("b", true))
				w.Settle()
				w.delete(replicaSets, "a", policy)
				w.Pass(time.Second)
				w.want(replicaSets, "b")
				w.want(pods, "both<b")
			})
		})
	}
}

func TestOwnerThatWasDeletedBeforeTheStart(t *testing.T) {
	run(t, func(w world) {
		w.make(replicaSets, "a")
		w.make(pods, "kept", set("a", true))
		w.make(pods, "lost", set("gone", true))
		other := set("a", true)
		other.UID = "uid-of-an-earlier-a"
		w.make(pods, "unrelated", other)
	}, func(w world) {
		w.want(pods, "kept<a")
	})
}

func TestOwnerInAnotherNamespaceIsNone(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(replicaSets, "a")
		w.Settle()
		w.create(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "lost", Namespace: "elsewhere", UID: uid("lost"), OwnerReferences: []metav1.OwnerReference{set("a", true)},
		}})
		w.Pass(time.Second)
		w.want(pods)
		w.want(replicaSets, "a")
		events, err := w.API.Set.Kube.CoreV1().Events("elsewhere").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(events.Items) == 0 {
			w.t.Fatalf("no event, %v", err)
		}
		const want = `ownerRef [apps/v1/ReplicaSet, namespace: elsewhere, name: a, uid: uid-a] does not exist in namespace "elsewhere"`
		if e := events.Items[0]; e.Reason != "OwnerRefInvalidNamespace" || e.Message != want {
			w.t.Errorf("event %s %q", e.Reason, e.Message)
		}
	})
}

func TestKindsThatComeAndGo(t *testing.T) {
	run(t, nil, func(w world) {
		served := w.Served()
		widget := owner(metatest.WidgetKind, "w", true)
		// A dependent of a kind that is not served is kept: who knows.
		w.make(pods, "early", widget)
		w.Pass(time.Minute)
		w.want(pods, "early<w")

		// Its definition comes, and so does the owner: nothing but the definition's event tells.
		w.Serve(append(slices.Clone(served), metatest.WidgetList()), nil)
		w.redefine()
		w.make(metatest.Widgets, "w")
		w.Pass(10 * time.Second)
		w.make(pods, "late", widget)
		w.Settle()
		w.want(pods, "early<w", "late<w")
		w.delete(metatest.Widgets, "w", metav1.DeletePropagationForeground)
		w.Pass(time.Second)
		w.want(metatest.Widgets)
		w.want(pods)

		// The kind goes again; its group's server being away is another matter.
		w.make(metatest.Widgets, "v")
		w.make(pods, "kept", owner(metatest.WidgetKind, "v", true))
		w.Settle()
		if n := len(w.collector.monitors); n != 3 { // configmaps, secrets, widgets
			w.t.Errorf("%d kinds are watched for the collector alone, want 3", n)
		}
		w.Serve(served,
			&discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{metatest.Widgets.GroupVersion(): errors.New("away")}})
		w.redefine()
		w.Pass(time.Minute)
		if n := len(w.collector.monitors); n != 3 {
			w.t.Errorf("%d kinds are watched while a group is away, want 3", n)
		}
		w.Serve(served, nil)
		w.Pass(time.Minute)
		if n := len(w.collector.monitors); n != 2 {
			w.t.Errorf("%d kinds are watched after one went, want 2", n)
		}
		w.want(pods, "kept<v")
	})
}

// While other servers serve groups, new kinds are found without an event.
func TestKindsOfOtherServers(t *testing.T) {
	apiServices := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	registered := func(name string, labels map[string]string) runtime.RawExtension {
		return runtime.RawExtension{Object: &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apiregistration.k8s.io/v1", Kind: "APIService"},
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid(name), Labels: labels},
		}}
	}
	all := &metav1.List{Items: []runtime.RawExtension{registered("v1.apps",
		map[string]string{"kube-aggregator.kubernetes.io/automanaged": "onstart"})}}
	var mu sync.Mutex // guards all
	run(t, func(w world) {
		w.Metadata.PrependReactor("list", apiServices.Resource, func(ktesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return true, all.DeepCopy(), nil
		})
	}, func(w world) {
		own := append(w.Served(), &metav1.APIResourceList{GroupVersion: "apiregistration.k8s.io/v1", APIResources: []metav1.APIResource{{
			Name: apiServices.Resource, Kind: "APIService", Verbs: metav1.Verbs{"delete", "list", "watch"},
		}}})
		watched := func(when string, want int) {
			w.t.Helper()
			if n := len(w.collector.monitors); n != want {
				w.t.Errorf("%s %d kinds are watched for the collector alone, want %d", when, n, want)
			}
		}
		w.Serve(own, nil)
		w.redefine()
		w.Pass(2 * time.Minute)
		watched("at first", 3) // configmaps, secrets, apiservices
		w.Serve(append(slices.Clone(own), metatest.WidgetList()), nil)
		w.Pass(time.Hour)
		watched("without another server and without an event", 3)

		w.Serve(own, nil)
		mu.Lock()
		all.Items = append(all.Items, registered("v1.example.com", nil))
		mu.Unlock()
		w.redefine()
		w.Pass(2 * time.Minute)
		watched("with another server", 3)
		w.Serve(append(slices.Clone(own), metatest.WidgetList()), nil)
		w.Pass(2 * time.Minute)
		watched("with another server's new kind", 4)
	})
}

func TestIdleIsIdle(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(replicaSets, "a")
		w.make(pods, "a-1", set("a", true))
		w.Pass(time.Minute)
		calls := len(w.Metadata.Actions())
		w.Pass(24 * time.Hour)
		for _, action := range w.Metadata.Actions()[calls:] {
			if verb := action.GetVerb(); verb != "watch" { // watches end after some minutes and start again
				w.t.Errorf("%s %s of an idle collector", verb, action.GetResource().Resource)
			}
		}
		if len(w.collector.graph.nodes.Entries) != 2 {
			w.t.Errorf("the graph has %d nodes, want 2", len(w.collector.graph.nodes.Entries))
		}
	})
}

func TestGraphForgetsWhatIsGone(t *testing.T) {
	run(t, nil, func(w world) {
		for range 3 {
			w.make(replicaSets, "a")
			w.make(pods, "a-1", set("a", true))
			w.make(pods, "lost", set("never", true))
			w.Settle()
			w.delete(replicaSets, "a", metav1.DeletePropagationBackground)
			w.Pass(time.Minute)
			w.want(pods)
			if n := len(w.collector.graph.nodes.Entries); n != 0 {
				w.t.Errorf("the graph of an empty API has %d nodes", n)
			}
		}
	})
}

func TestClusterScopedOwner(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(nodes, "n")
		w.make(pods, "mirror", owner(corev1.SchemeGroupVersion.WithKind("Node"), "n", true))
		w.Settle()
		w.want(pods, "mirror<n")
		if err := w.Metadata.Resource(nodes).Delete(context.Background(), "n", metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		w.Pass(time.Second)
		w.want(pods)
	})
}

func TestClusterScopedObjectCannotHaveANamespacedOwner(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(nodes, "n", set("a", true))
		w.Pass(time.Hour)
		w.want(nodes, "n<a")
	})
}

func TestCircleInForegroundEnds(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(replicaSets, "a", set("b", true))
		w.make(replicaSets, "b", set("a", true))
		w.Settle()
		w.delete(replicaSets, "a", metav1.DeletePropagationForeground)
		w.Pass(time.Minute)
		w.want(replicaSets)
	})
}

func TestUnblockedOwnerGoes(t *testing.T) {
	run(t, nil, func(w world) {
		w.make(replicaSets, "a")
		w.make(configMaps, "kept", set("a", true))
		w.finalize(configMaps, "kept")
		w.delete(replicaSets, "a", metav1.DeletePropagationForeground)
		w.Pass(time.Minute)
		w.want(replicaSets, "a!")
		w.patch(configMaps, "kept",
			`{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"a","uid":"uid-a","blockOwnerDeletion":false}]}}`)
		w.Pass(time.Second)
		w.want(replicaSets)
		w.want(configMaps, "kept!<a")
	})
}
