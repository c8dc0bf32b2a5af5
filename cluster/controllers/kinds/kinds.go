// Package kinds knows which kinds of objects an API server has at this moment: what the
// controllers that treat all kinds alike (the garbage collector, the deletion of a namespace,
// quotas of object counts) ask instead of a list written into the code.
//
// A Table is one answer of discovery and never changes; CustomResourceDefinitions come and go, so
// that its users take a new one when they have reason to. A group that could not be asked (its
// server is away) is missing from the table and named in Failed: what is not in the table may
// still exist.
package kinds

import (
	"errors"
	"iter"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// Resource is one kind of object and where the API serves it.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
	Verbs      metav1.Verbs
}

// APIVersion is the resource's group and version as an object's apiVersion spells them.
func (r Resource) APIVersion() string { return r.GroupVersion().String() }

// Can reports whether the resource has all of these verbs.
func (r Resource) Can(verbs ...string) bool {
	for _, verb := range verbs {
		if !slices.Contains(r.Verbs, verb) {
			return false
		}
	}
	return true
}

// Table is what one round of discovery found.
type Table struct {
	// Failed says why the named groups' resources are not in the table.
	Failed map[schema.GroupVersion]error

	preferred []Resource
	byKind    map[schema.GroupVersionKind]Resource
}

// Discover asks the API server for all that it serves. A server that answers for some groups only
// gives a Table with these and the rest in Failed, and the error as discovery reports it; without
// any answer the Table is nil.
func Discover(client discovery.DiscoveryInterface) (*Table, error) {
	groups, lists, err := client.ServerGroupsAndResources()
	var partial *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	table := &Table{byKind: map[schema.GroupVersionKind]Resource{}}
	if partial != nil {
		table.Failed = partial.Groups
	}
	first := map[string]string{}
	for _, group := range groups {
		first[group.Name] = group.PreferredVersion.Version
	}
	at := map[schema.GroupResource]int{}
	for _, list := range lists {
		gv, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			return table, parseErr
		}
		for _, api := range list.APIResources {
			if strings.Contains(api.Name, "/") { // a subresource
				continue
			}
			r := Resource{gv.WithResource(api.Name), api.Kind, api.Namespaced, api.Verbs}
			table.byKind[gv.WithKind(api.Kind)] = r
			// The group's preferred version, or for what that lacks the first that has it.
			if i, known := at[r.GroupResource()]; !known {
				at[r.GroupResource()] = len(table.preferred)
				table.preferred = append(table.preferred, r)
			} else if gv.Version == first[gv.Group] {
				table.preferred[i] = r
			}
		}
	}
	return table, err
}

// With yields each resource once, in its preferred version, that has all of these verbs.
func (t *Table) With(verbs ...string) iter.Seq[Resource] {
	return func(yield func(Resource) bool) {
		for _, r := range t.preferred {
			if r.Can(verbs...) && !yield(r) {
				return
			}
		}
	}
}

// ForKind returns the resource that serves a kind in the version that an owner reference names.
func (t *Table) ForKind(apiVersion, kind string) (Resource, bool) {
	if t == nil {
		return Resource{}, false
	}
	r, ok := t.byKind[schema.FromAPIVersionAndKind(apiVersion, kind)]
	return r, ok
}

// ForResource returns the preferred version of a resource.
func (t *Table) ForResource(name schema.GroupResource) (Resource, bool) {
	for _, r := range t.preferred {
		if r.GroupResource() == name {
			return r, true
		}
	}
	return Resource{}, false
}
