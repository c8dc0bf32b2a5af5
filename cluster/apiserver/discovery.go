package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

const aggregatedDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// withPlainDiscovery answers GET /apis for clients that do not ask for aggregated discovery, and
// GET /apis/GROUP for groups that elsewhere says other servers serve versions of.
//
// The server of the built-in groups knows all groups when asked for aggregated discovery, but only
// its own when asked for the plain list: upstream has another server in front that merges the
// lists. Here the plain list is made from the aggregated one.
func withPlainDiscovery(handler http.Handler, elsewhere func(group string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		below, ok := strings.CutPrefix(strings.TrimSuffix(r.URL.Path, "/"), "/apis")
		group := strings.TrimPrefix(below, "/")
		one := ok && below == "/"+group && group != "" && !strings.Contains(group, "/") && elsewhere(group)
		whole := ok && below == "" && !strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList")
		if r.Method != http.MethodGet || !one && !whole {
			handler.ServeHTTP(w, r)
			return
		}
		aggregated := r.Clone(r.Context())
		aggregated.URL.Path = "/apis"
		aggregated.Header.Set("Accept", aggregatedDiscovery)
		aggregated.Header.Del("If-None-Match")
		aggregated.Header.Del("Accept-Encoding")
		recorded := httptest.NewRecorder()
		handler.ServeHTTP(recorded, aggregated)
		var all apidiscoveryv2.APIGroupDiscoveryList
		if recorded.Code != http.StatusOK || json.Unmarshal(recorded.Body.Bytes(), &all) != nil {
			handler.ServeHTTP(w, r)
			return
		}
		answer := func(object runtime.Object) {
			responsewriters.WriteObjectNegotiated(legacyscheme.Codecs, negotiation.DefaultEndpointRestrictions,
				schema.GroupVersion{}, w, r, http.StatusOK, object, false)
		}
		groups := plainGroups(&all)
		if whole {
			answer(groups)
			return
		}
		for i := range groups.Groups {
			if groups.Groups[i].Name == group {
				answer(&groups.Groups[i])
				return
			}
		}
		handler.ServeHTTP(w, r) // its APIService has gone meanwhile
	})
}

func plainGroups(all *apidiscoveryv2.APIGroupDiscoveryList) *metav1.APIGroupList {
	list := &metav1.APIGroupList{}
	for _, g := range all.Items {
		group := metav1.APIGroup{Name: g.Name}
		for _, v := range g.Versions {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: g.Name + "/" + v.Version, Version: v.Version})
		}
		if len(group.Versions) == 0 {
			continue
		}
		group.PreferredVersion = group.Versions[0]
		list.Groups = append(list.Groups, group)
	}
	return list
}
