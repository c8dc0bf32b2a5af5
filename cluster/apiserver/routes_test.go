package apiserver

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// No route of the server keeps a regular expression, or what only OpenAPI documents need. (That it
// serves them nonetheless is what the other tests show.)
func TestRoutesKeepWhatIsUsed(t *testing.T) {
	container := server.handler.(*genericapiserver.APIServerHandler).GoRestfulContainer
	routes, kept, documented := 0, 0, 0
	for _, service := range container.RegisteredWebServices() {
		for _, route := range service.Routes() {
			routes++
			e := expressionOf(&route)
			if e == nil {
				t.Fatalf("%s: another go-restful; see whether its routes still have expressions", route.Path)
			}
			if *e != nil {
				kept++
			}
			if len(route.ResponseErrors) > 0 || slices.ContainsFunc(route.ParameterDocs, func(p *restful.Parameter) bool { return p != nil }) {
				documented++
			}
		}
	}
	if routes < 500 || kept > 0 || documented > 0 {
		t.Errorf("of %d routes %d keep an expression, and %d their documentation", routes, kept, documented)
	}
}

// Paths are told from each other without them.
func TestForgetExpressions(t *testing.T) {
	container := restful.NewContainer()
	container.Router(restful.CurlyRouter{}) // the API server's
	service := new(restful.WebService).Path("/api")
	for _, path := range []string{"/things/{name}", "/things/{name}/part", "/rest/{path:*}", "/things"} {
		service.Route(service.GET(path).To(func(r *restful.Request, w *restful.Response) {
			_, _ = w.Write([]byte(path + " " + r.PathParameter("name") + r.PathParameter("path")))
		}))
	}
	container.Add(service)
	for _, route := range service.Routes() {
		if e := expressionOf(&route); e == nil || *e == nil {
			t.Fatalf("%s has no expression even before", route.Path)
		}
	}
	forgetExpressions(container)
	for path, want := range map[string]string{
		"/api/things/a":      "/things/{name} a",
		"/api/things/a/part": "/things/{name}/part a",
		"/api/rest/a/b":      "/rest/{path:*} a/b",
		"/api/things":        "/things ",
		"/api/none":          "404: Page Not Found",
		"/none":              "404 page not found\n",
	} {
		w := httptest.NewRecorder()
		container.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if got := w.Body.String(); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
