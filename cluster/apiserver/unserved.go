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
type warnUnserved struct{ *admission.Handler }

func registerUnserved(plugins *admission.Plugins) {
	plugins.Register(unservedPlugin, func(io.Reader) (admission.Interface, error) {
		return warnUnserved{admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

// Validate implements admission.ValidationInterface.
func (warnUnserved) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	if missing := whatIsMissing(a); missing != "" {
		warning.AddWarning(ctx, "", unserved.Message(a.GetKind().Kind, a.GetName(), missing))
	}
	return nil
}

func whatIsMissing(a admission.Attributes) string {
	return unserved.Missing(a.GetResource().GroupResource())
}
