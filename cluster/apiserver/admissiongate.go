package apiserver

import (
	"context"
	"errors"
	"time"

	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
)

// readyLimit is how long a request waits for the admission plugins (upstream's value).
const readyLimit = 10 * time.Second

// admissionGate holds requests back until all admission plugins are ready: their informers have
// synced. Each of upstream's plugins asks for that at each request, with two timers and the locks
// of its informers, as long as it has a function to ask.
type admissionGate struct {
	chain   admissionChain
	plugins []lateStarter
	ready   chan struct{} // closed when they are
}

type admissionChain interface {
	admission.MutationInterface
	admission.ValidationInterface
}

// lateStarter is a plugin that is ready some time after the start of the server.
type lateStarter interface {
	WaitForReady() bool
	SetReadyFunc(ready admission.ReadyFunc)
}

// add implements admission.DecoratorFunc. Only plugins that may wait for something are measured one
// by one: an observation costs more than what the others do, and each makes up to ten series for
// each kind of request.
func (g *admissionGate) add(plugin admission.Interface, name string) admission.Interface {
	if p, ok := plugin.(lateStarter); ok {
		g.plugins = append(g.plugins, p)
	}
	switch name {
	case mutatingpolicy.PluginName, mutatingwebhook.PluginName, validatingpolicy.PluginName, validatingwebhook.PluginName,
		resourcequota.PluginName:
		return admissionmetrics.WithControllerMetrics(plugin, name)
	}
	return plugin
}

// open lets requests in when all plugins are ready. It ends with ctx.
func (g *admissionGate) open(ctx context.Context) {
	for _, p := range g.plugins {
		for !p.WaitForReady() {
			if ctx.Err() != nil {
				return
			}
		}
	}
	for _, p := range g.plugins {
		p.SetReadyFunc(nil) // no request has come to it yet
	}
	close(g.ready)
}

func (g *admissionGate) wait(ctx context.Context, a admission.Attributes) error {
	select {
	case <-g.ready:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	select {
	case <-g.ready:
		return nil
	case <-ctx.Done():
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
}

// Handles implements admission.Interface.
func (g *admissionGate) Handles(o admission.Operation) bool { return g.chain.Handles(o) }

// Admit implements admission.MutationInterface.
func (g *admissionGate) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := g.wait(ctx, a); err != nil {
		return err
	}
	return g.chain.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (g *admissionGate) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := g.wait(ctx, a); err != nil {
		return err
	}
	return g.chain.Validate(ctx, a, o)
}
