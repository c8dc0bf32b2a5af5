package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/client"
)

// The informers of built-in kinds make no requests.
func TestInformersMakeNoRequests(t *testing.T) {
	refuse := func(r *http.Request) (*http.Response, error) { return nil, fmt.Errorf("%s was asked for", r.URL.Path) }
	kube := clientOf(t, &rest.Config{Host: insideHost, Transport: roundTrip(refuse)})
	shared := server.storages.Informers(client.NewInformers(kube))
	lists, err := admin(t).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists)
	resources, err := discovery.GroupVersionResources(lists)
	if err != nil {
		t.Fatal(err)
	}
	known := map[schema.GroupVersionResource]cache.SharedIndexInformer{}
	for r := range resources {
		if informer, err := shared.ForResource(r); err == nil {
			known[r] = informer.Informer()
		}
	}
	if len(known) < 40 {
		t.Errorf("only %d resources have informers", len(known))
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer shared.Shutdown()
	defer stop()
	shared.StartWithContext(ctx)
	for r, informer := range known {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			t.Errorf("%s: no sync without requests", r)
		}
	}
}

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// Regression: upstream's admission plugins look every 100 ms whether informers have synced, and
// whether policies are compiled. The first writes of a starting server came up to 200 ms late.
func TestPromptInformers(t *testing.T) {
	const sync, compile = 30 * time.Millisecond, 20 * time.Millisecond
	for name, test := range map[string]struct {
		compiles bool
		// want is when namespaces have synced, by what the caller asks once.
		want time.Duration
	}{
		"policies are compiled":     {true, sync + compile},
		"policies are not compiled": {false, sync + 2*askedEvery},
	} {
		synctest.Test(t, func(t *testing.T) {
			shared := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
			prompt := newPromptInformers(shared)
			namespaces := prompt.Core().V1().Namespaces().Informer()
			policies := prompt.Admissionregistration().V1()
			bindings := []cache.SharedIndexInformer{
				policies.ValidatingAdmissionPolicyBindings().Informer(), policies.MutatingAdmissionPolicyBindings().Informer(),
			}
			if namespaces.HasSynced() || bindings[0].HasSynced() {
				t.Errorf("%s: synced before the start", name)
			}
			ctx, stop := context.WithCancel(t.Context())
			began := time.Now()
			took := make(chan time.Duration)
			go func() {
				if !namespaces.HasSynced() {
					t.Errorf("%s: it is not said that namespaces have synced", name)
				}
				took <- time.Since(began)
			}()
			time.Sleep(sync)
			shared.Start(ctx.Done())
			synctest.Wait()
			if test.compiles {
				time.Sleep(compile)
				for _, b := range bindings {
					r, err := b.AddEventHandler(cache.ResourceEventHandlerFuncs{})
					if err != nil || !r.HasSynced() {
						t.Errorf("%s: the source's handler: %v", name, err)
					}
					if err := b.RemoveEventHandler(r); err != nil {
						t.Error(err)
					}
				}
			}
			if got := <-took; got != test.want {
				t.Errorf("%s: it took %v, want %v", name, got, test.want)
			}
			began = time.Now()
			if !namespaces.HasSynced() || time.Since(began) != 0 {
				t.Errorf("%s: asked again, it took %v", name, time.Since(began))
			}
			stop()
			shared.Shutdown()
		})
	}
}
