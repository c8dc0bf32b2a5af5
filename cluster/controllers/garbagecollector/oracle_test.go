package garbagecollector

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	upstream "k8s.io/kubernetes/pkg/controller/garbagecollector"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/internal/metatest"
)

// resettable is a mapper over kinds that do not change.
type resettable struct{ meta.RESTMapper }

func (resettable) Reset() {}

// theirs is upstream's collector over the same API.
func theirs(api *metatest.API) apitest.Upstream {
	groups, err := restmapper.GetAPIGroupResources(api.Kube.Discovery())
	if err != nil {
		panic(err)
	}
	started := make(chan struct{})
	close(started)
	return func(ctx context.Context) {
		factory := informerfactory.NewInformerFactory(api.Informers, metadatainformer.NewSharedInformerFactory(api.Metadata, 0))
		gc, err := upstream.NewGarbageCollector(ctx, api.Kube, api.Metadata, resettable{restmapper.NewDiscoveryRESTMapper(groups)},
			upstream.DefaultIgnoredResources(), factory, started)
		if err != nil {
			panic(err)
		}
		go gc.Sync(ctx, api.Kube.Discovery(), 30*time.Second)
		gc.Run(ctx, 20, 30*time.Second)
	}
}

// TestAsUpstream plays the same deletions to upstream's collector and to ours.
func TestAsUpstream(t *testing.T) {
	for name, policy := range map[string]metav1.DeletionPropagation{
		"background": metav1.DeletePropagationBackground,
		"foreground": metav1.DeletePropagationForeground,
		"orphan":     metav1.DeletePropagationOrphan,
	} {
		t.Run(name, func(t *testing.T) {
			var api *metatest.API
			ours := apitest.Ours(func(set *client.Set) *frame.Controller {
				api = metatest.Of(set)
				return New(api.Set, api.Metadata, nil)
			})
			upstreams := apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
				api = metatest.Of(set)
				return theirs(api)
			}}
			apitest.SameAs(t, ours, upstreams, func(t *testing.T, s *apitest.Server, note func(string)) {
				w := world{API: api, Server: s, t: t}
				s.Pass(time.Minute) // upstream polls for its watches, up to 30 s
				w.make(deployments, "web")
				w.make(deployments, "api")
				w.Settle()
				w.make(replicaSets, "web-1", deployment("web"))
				w.make(replicaSets, "web-2", deployment("web"))
				w.make(replicaSets, "api-1", deployment("api"))
				w.Settle()
				w.make(pods, "web-1-a", set("web-1", true))
				w.make(pods, "web-1-b", set("web-1", false))
				w.make(pods, "web-2-a", set("web-2", true))
				w.make(pods, "shared", set("web-2", true), set("api-1", true))
				w.make(pods, "lost", set("never-was", true))
				foreign := set("api-1", true)
				foreign.Name = "another-name"
				w.make(pods, "misnamed", foreign)
				note("made")
				w.finalize(pods, "web-2-a")
				w.delete(deployments, "web", policy)
				note("owner deleted")
				w.patch(pods, "web-2-a", `{"metadata":{"finalizers":null}}`)
				note("finalizer removed")
				w.delete(deployments, "api", policy)
				note("second owner deleted")
			})
		})
	}
}

// finalize has someone else keep a pod.
func (w world) finalize(gvr schema.GroupVersionResource, name string) {
	w.patch(gvr, name, `{"metadata":{"finalizers":["example.com/slow"]}}`)
	w.Settle()
}

func (w world) patch(gvr schema.GroupVersionResource, name, body string) {
	w.t.Helper()
	if _, err := w.Metadata.Resource(gvr).Namespace(apitest.Namespace).Patch(context.Background(), name,
		types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}
