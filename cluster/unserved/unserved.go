// Package unserved is the list of what the API server keeps and nothing of this cluster acts on.
// Those who write such an object get a Warning (cluster/apiserver), and the object gets an Event
// (cluster/controllers/notactedon).
package unserved

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds says of each resource what is not done.
type Kinds map[schema.GroupResource]string

// Policies are what a cluster does not act on that leaves network policies to others.
var Policies = Kinds{
	{Group: "networking.k8s.io", Resource: "networkpolicies"}:               withoutPolicies,
	{Group: "policy.networking.k8s.io", Resource: "clusternetworkpolicies"}: withoutPolicies,
}

const withoutPolicies = "with --network-policies=false a network plugin enforces it, or nothing does"

// always are kept by every cluster.
var always = Kinds{
	{Group: "networking.k8s.io", Resource: "ingresses"}:      "no traffic is routed by it",
	{Group: "networking.k8s.io", Resource: "ingressclasses"}: "no traffic is routed by it",

	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}:                 "requests are shared out by upstream's default levels",
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}: "requests are shared out by upstream's default levels",
	{
		Group:    "resource.k8s.io",
		Resource: "resourceclaims",
	}: "the scheduler chooses devices for it, and the node does not prepare them",
}

// With returns what no cluster acts on, and these.
func With(further Kinds) Kinds {
	all := maps.Clone(always)
	maps.Copy(all, further)
	return all
}

// Missing says what is not done of objects of a resource, "" if all is.
func (k Kinds) Missing(resource schema.GroupResource) string { return k[resource] }

// Message is what users read of an object, such as StatefulSet "db".
func Message(kind, name, missing string) string {
	return fmt.Sprintf("%s %q is stored but not acted on by this cluster: %s", kind, name, missing)
}
