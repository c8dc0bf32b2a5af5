package apiserver

import (
	"context"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
)

// unserved is the admission plugin that says what will not happen: whoever creates or updates an
// object that is kept but that nothing acts on gets a Warning header.
const unserved = "UnservedResourceWarning"

// storedOnly says of each resource that nothing acts on what is not done.
var storedOnly = map[schema.GroupResource]string{
	{Resource: "persistentvolumeclaims"}:                           "volumes are not provisioned or bound, pods that use it stay pending",
	{Resource: "persistentvolumes"}:                                "volumes are not provisioned or bound, pods that use it stay pending",
	{Resource: "replicationcontrollers"}:                           "no pods are made for it; a Deployment does the same",
	{Group: "apps", Resource: "statefulsets"}:                      "no pods are made for it",
	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}:   "nothing is scaled by it",
	{Group: "batch", Resource: "cronjobs"}:                         "no Jobs are made for it",
	{Group: "networking.k8s.io", Resource: "ingresses"}:            "no traffic is routed by it",
	{Group: "networking.k8s.io", Resource: "ingressclasses"}:       "no traffic is routed by it",
	{Group: "networking.k8s.io", Resource: "networkpolicies"}:      "no traffic is allowed or denied by it",
	{Group: "storage.k8s.io", Resource: "storageclasses"}:          "volumes are not provisioned",
	{Group: "storage.k8s.io", Resource: "csidrivers"}:              "CSI drivers are not used",
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:       "volumes are not attached",
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}: "volumes are not modified",
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}:    "volumes are not provisioned",
}

// warnUnserved is an admission plugin; it never rejects anything.
type warnUnserved struct{ *admission.Handler }

func registerUnserved(plugins *admission.Plugins) {
	plugins.Register(unserved, func(io.Reader) (admission.Interface, error) {
		return warnUnserved{admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

// Validate implements admission.ValidationInterface.
func (warnUnserved) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	if missing := whatIsMissing(a); missing != "" {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s %q is stored but not acted on by this cluster: %s", a.GetKind().Kind, a.GetName(), missing))
	}
	return nil
}

func whatIsMissing(a admission.Attributes) string {
	return storedOnly[a.GetResource().GroupResource()]
}
