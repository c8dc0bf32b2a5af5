// Package unserved is the list of what the API server keeps and nothing of this cluster acts on.
// Those who write such an object get a Warning (cluster/apiserver), and the object gets an Event
// (cluster/controllers/notactedon).
package unserved

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds says of each resource what is not done.
var kinds = map[schema.GroupResource]string{
	{Resource: "persistentvolumeclaims"}:                           "volumes are not provisioned or bound, pods that use it stay pending",
	{Resource: "persistentvolumes"}:                                "volumes are not provisioned or bound, pods that use it stay pending",
	{Group: "networking.k8s.io", Resource: "ingresses"}:            "no traffic is routed by it",
	{Group: "networking.k8s.io", Resource: "ingressclasses"}:       "no traffic is routed by it",
	{Group: "storage.k8s.io", Resource: "storageclasses"}:          "volumes are not provisioned",
	{Group: "storage.k8s.io", Resource: "csidrivers"}:              "CSI drivers are not used",
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:       "volumes are not attached",
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}: "volumes are not modified",
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}:    "volumes are not provisioned",

	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}:                 "requests are shared out by upstream's default levels",
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}: "requests are shared out by upstream's default levels",
	{Group: "resource.k8s.io", Resource: "deviceclasses"}:                            "devices are not allocated",
	{Group: "resource.k8s.io", Resource: "resourceclaims"}:                           "devices are not allocated",
	{Group: "resource.k8s.io", Resource: "resourceclaimtemplates"}:                   "no claims are made of it",
	{Group: "resource.k8s.io", Resource: "resourceslices"}:                           "devices are not allocated",
}

// Missing says what is not done of objects of a resource, "" if all is.
func Missing(resource schema.GroupResource) string { return kinds[resource] }

// Message is what users read of an object, such as StatefulSet "db".
func Message(kind, name, missing string) string {
	return fmt.Sprintf("%s %q is stored but not acted on by this cluster: %s", kind, name, missing)
}
