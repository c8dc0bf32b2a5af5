package apiserver

import (
	"io"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"
)

// The groups that are built in cannot be given away: the server itself needs them, and would not
// start again.
func TestBuiltinGroupsStay(t *testing.T) {
	o := broken(t, func(*Options) {})
	s, stop := serve(t, o)
	away := []string{
		"v1.networking.k8s.io", "v1.rbac.authorization.k8s.io", "v1.discovery.k8s.io", "v1.apiextensions.k8s.io",
		"v1.admissionregistration.k8s.io",
	}
	all := registrationsOf(t, s).ApiregistrationV1().APIServices()
	for _, name := range away {
		eventually(t, name+" is given away", func() (bool, error) {
			a, err := all.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil {
				a.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: "nothing", Port: ptr.To(int32(443))}
				a.Spec.InsecureSkipTLSVerify = true
				_, err = all.Update(t.Context(), a, metav1.UpdateOptions{})
			}
			return err == nil, err
		})
		becomes(t, s, name, "ServiceNotFound")
	}
	asks := func(s *Server) {
		t.Helper()
		client := clientOf(t, s.ClientConfig("admin", "system:masters"))
		if _, err := client.NetworkingV1().NetworkPolicies("").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if list, err := client.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) == 0 {
			t.Fatalf("%v, %v", list, err)
		}
	}
	asks(s)
	stop()
	s, stop = serve(t, o)
	defer stop()
	asks(s)
	for _, name := range away {
		becomes(t, s, name, "Local")
	}
}

// Groups that are served here have APIServices, too, those of custom resources while they exist.
func TestAPIServicesOfOwnGroups(t *testing.T) {
	all := registrationsOf(t, server).ApiregistrationV1().APIServices()
	for name, priority := range map[string]int32{
		"v1.": 18000, "v1.apps": 17800, "v2.autoscaling": 17500, "v1.apiextensions.k8s.io": 16700,
		"v1.rbac.authorization.k8s.io": 17000,
	} {
		eventually(t, name+" exists", func() (bool, error) {
			_, err := all.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil, err
		})
		a, err := all.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c := a.Status.Conditions; a.Spec.Service != nil || len(c) != 1 || c[0].Reason != "Local" ||
			c[0].Status != apiregistrationv1.ConditionTrue || a.Spec.GroupPriorityMinimum != priority {
			t.Errorf("%s: %+v", name, a)
		}
	}
	// It would be in the way of a metrics server's own.
	if _, err := all.Get(t.Context(), "v1beta1.metrics.k8s.io", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("metrics: %v", err)
	}
	resp, body := get(t, true, "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"cells":["v1.apps","Local","True"`) {
		t.Errorf("%d %.600s", resp.StatusCode, body)
	}
	// The core group cannot be given away: no one could take it back.
	core, err := all.Get(t.Context(), "v1.", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	core.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: "nothing", Port: ptr.To(int32(443))}
	if _, err = all.Update(t.Context(), core, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, server, "v1.", "ServiceNotFound")
	if _, err := admin(t).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the core API: %v", err)
	}
	eventually(t, "it is local again", func() (bool, error) {
		a, err := all.Get(t.Context(), "v1.", metav1.GetOptions{})
		if err == nil {
			a.Spec.Service = nil
			_, err = all.Update(t.Context(), a, metav1.UpdateOptions{})
		}
		return err == nil, err
	})
	becomes(t, server, "v1.", "Local")
}

// All users may read OpenAPI documents. That lets them read nothing else of another server.
func TestDocumentsOfAnotherServer(t *testing.T) {
	gv := schema.GroupVersion{Group: "documents.example.com", Version: "v1"}
	ships := newShipServer(t, server, gv, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "theirs") })
	elsewhere(t, server, gv, ships.port, ships.ca)
	becomes(t, server, "v1.documents.example.com", "Passed")
	eve := server.inside.token("eve", nil)
	seen := func() (paths []string) {
		ships.mu.Lock()
		defer ships.mu.Unlock()
		for _, r := range ships.requests {
			if r.Header.Get("X-Remote-User") == "eve" {
				paths = append(paths, r.Method+" "+r.RequestURI)
			}
		}
		return paths
	}
	const document = "/openapi/v3/apis/documents.example.com/v1"
	if resp, body := as(t, server, eve, document); resp.StatusCode != http.StatusOK || body != "theirs" || len(seen()) != 1 {
		t.Fatalf("a document: %d %s, seen %q", resp.StatusCode, body, seen())
	}
	for _, below := range []string{
		"/", "/ships", "/../../../../apis/documents.example.com/v1/ships", "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/apis/documents.example.com/v1/ships",
		"%2f..%2f..%2f..%2f..%2fapis%2fdocuments.example.com%2fv1%2fships", "/..",
	} {
		if resp, body := as(t, server, eve, document+below); resp.StatusCode != http.StatusNotFound || body == "theirs" {
			t.Errorf("%s: %d %.100s", below, resp.StatusCode, body)
		}
	}
	config, err := rest.TLSConfigFor(rest.AnonymousClientConfig(overTLS(t)))
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"http/1.1"}
	upgrading := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	upgrade, err := http.NewRequestWithContext(t.Context(), http.MethodGet, overTLS(t).Host+document, nil)
	if err != nil {
		t.Fatal(err)
	}
	upgrade.Header = http.Header{"Authorization": {"Bearer " + eve}, "Connection": {"Upgrade"}, "Upgrade": {"test"}}
	resp, err := upgrading.Do(upgrade)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("an upgrade: %d", resp.StatusCode)
	}
	if paths := seen(); len(paths) != 1 {
		t.Errorf("the server saw %q of a user without roles", paths)
	}
	if err := clientOf(t,
		overTLS(t)).CoreV1().RESTClient().Post().AbsPath(document).Do(t.Context()).Error(); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("POST: %v", err)
	}
}
