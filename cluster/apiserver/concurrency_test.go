package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// Of two concurrent requests the second is reported. A watch does not count.
func TestConcurrencyIsReported(t *testing.T) {
	told := 0
	var h http.Handler
	nested := map[string]string{"/first": "/second", "/watch": "/alone", "/third": "/watch"}
	ask := func(path string) {
		verb := "get"
		if path == "/watch" {
			verb = "watch"
		}
		r := httptest.NewRequest(http.MethodGet, path, nil)
		h.ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{Verb: verb})))
	}
	h = reportConcurrency(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if next := nested[r.URL.Path]; next != "" {
			ask(next)
		}
	}), func() { told++ }, func(_ *http.Request, info *request.RequestInfo) bool { return info.Verb == "watch" })
	for path, want := range map[string]int{"/alone": 0, "/first": 1, "/watch": 0} {
		told = 0
		if ask(path); told != want {
			t.Errorf("%s: told %d times, want %d", path, told, want)
		}
	}
	told = 0
	if ask("/third"); told != 1 { // the one below the watch
		t.Errorf("a request during a watch during a request: told %d times, want 1", told)
	}
}
