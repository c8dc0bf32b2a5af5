package apiserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

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
