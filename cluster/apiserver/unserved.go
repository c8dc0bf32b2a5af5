package apiserver

import (
	"context"
	"io"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"github.com/coracle-project/coracle/cluster/unserved"
)

// unservedPlugin is the admission plugin that says what will not happen: a request that creates or
// updates an object on which nothing acts gets a Warning header.
const unservedPlugin = "UnservedResourceWarning"

// warnUnserved is an admission plugin; it never rejects anything.
type warnUnserved struct {
	*admission.Handler
	kinds unserved.Kinds
}

func registerUnserved(plugins *admission.Plugins) {
	plugins.Register(unservedPlugin, func(io.Reader) (admission.Interface, error) {
		return &warnUnserved{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

// unservedKinds tells the plugin what nothing acts on.
type unservedKinds unserved.Kinds

// Initialize implements admission.PluginInitializer.
func (k unservedKinds) Initialize(plugin admission.Interface) {
	if w, ok := plugin.(*warnUnserved); ok {
		w.kinds = unserved.Kinds(k)
	}
}

// Validate implements admission.ValidationInterface.
func (w *warnUnserved) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	if missing := w.kinds.Missing(a.GetResource().GroupResource()); missing != "" {
		warning.AddWarning(ctx, "", unserved.Message(a.GetKind().Kind, a.GetName(), missing))
	}
	return nil
}
