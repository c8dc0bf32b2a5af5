package apiserver

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
)

// countingPlugin counts the requests that it sees, and asks for its readiness as upstream's do.
type countingPlugin struct {
	*admission.Handler
	seen, asked atomic.Int32
	synced      atomic.Bool
}

func newCountingPlugin() *countingPlugin {
	p := &countingPlugin{Handler: admission.NewHandler(admission.Create)}
	p.SetReadyFunc(func() bool {
		p.asked.Add(1)
		return p.synced.Load()
	})
	return p
}

func (p *countingPlugin) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	if p.WaitForReady() {
		p.seen.Add(1)
	}
	return nil
}

func (p *countingPlugin) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return p.Admit(ctx, a, o)
}

func newGate(p *countingPlugin) *admissionGate {
	g := &admissionGate{chain: p, ready: make(chan struct{})}
	g.add(p, lifecycle.PluginName)
	return g
}

func somePod() admission.Attributes {
	kind, resource := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	return admission.NewAttributesRecord(nil, nil, kind, "default", "web", resource, "", admission.Create, nil, false, nil)
}

func TestAdmissionWaitsUntilPluginsAreReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin := newCountingPlugin()
		g := newGate(plugin)
		go g.open(t.Context())
		results := make(chan error, 2)
		go func() { results <- g.Admit(t.Context(), somePod(), nil) }()
		go func() { results <- g.Validate(t.Context(), somePod(), nil) }()
		time.Sleep(readyLimit / 2)
		if n := plugin.seen.Load(); n != 0 {
			t.Fatalf("%d requests came to a plugin that is not ready", n)
		}
		plugin.synced.Store(true)
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		asked := plugin.asked.Load()
		if err := g.Admit(t.Context(), somePod(), nil); err != nil {
			t.Error(err)
		}
		if n := plugin.seen.Load(); n != 3 {
			t.Errorf("the plugin has seen %d requests, not 3", n)
		}
		if n := plugin.asked.Load(); n != asked {
			t.Errorf("asked %d more times whether it is ready, after it was", n-asked)
		}
	})
}

func TestAdmissionRefusesWhenPluginsDoNotGetReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin := newCountingPlugin()
		g := newGate(plugin)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.open(ctx)
		}()
		begin := time.Now()
		if err := g.Admit(t.Context(), somePod(), nil); !apierrors.IsForbidden(err) {
			t.Errorf("got %v, want Forbidden", err)
		}
		if waited := time.Since(begin); waited != readyLimit {
			t.Errorf("refused after %s, not %s", waited, readyLimit)
		}
		if n := plugin.seen.Load(); n != 0 {
			t.Errorf("%d requests came to the plugin", n)
		}
		cancel()
		<-ended // which does not outlive the server
	})
}

func TestOnlyPluginsThatMayWaitAreMeasured(t *testing.T) {
	g := &admissionGate{}
	plugin := newCountingPlugin()
	if got := g.add(plugin, lifecycle.PluginName); got != admission.Interface(plugin) {
		t.Errorf("%s is wrapped in a %T", lifecycle.PluginName, got)
	}
	if got := g.add(plugin, mutatingwebhook.PluginName); got == admission.Interface(plugin) {
		t.Errorf("%s is not measured", mutatingwebhook.PluginName)
	}
	if len(g.plugins) != 2 {
		t.Errorf("%d plugins are waited for, not 2", len(g.plugins))
	}
}

// Regression: the gate was opened by a hook of the server, but the server writes before its hooks
// begin. Each start took two seconds more.
func TestAdmissionLetsInWhatTheServerWritesBeforeItsHooks(t *testing.T) {
	if !networked.Load() {
		t.Error("the network of Services did not exist when the hooks began")
	}
}
