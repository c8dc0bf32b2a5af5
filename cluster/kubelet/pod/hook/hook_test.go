package hook

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
)

// Regression: a preStop hook whose path redirects, as to one with a slash, did nothing. As
// upstream's, a hook goes where its pod sends it, but to no other host.
func TestHooksFollowRedirectsToTheSameHost(t *testing.T) {
	var mu sync.Mutex
	var called []string
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		called = append(called, r.URL.Path)
		switch r.URL.Path {
		case "/drain":
			http.Redirect(w, r, "/drain/", http.StatusMovedPermanently)
		case "/elsewhere":
			http.Redirect(w, r, strings.Replace(server.URL, "127.0.0.1", "127.0.0.2", 1)+"/stolen", http.StatusTemporaryRedirect)
		case "/circle":
			http.Redirect(w, r, "/circle", http.StatusFound)
		}
	}))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for path, c := range map[string]struct {
		called []string
		fails  bool
	}{
		"/drain":     {called: []string{"/drain", "/drain/"}},
		"/elsewhere": {called: []string{"/elsewhere"}},
		"/circle":    {called: slices.Repeat([]string{"/circle"}, 10), fails: true},
	} {
		called = nil
		r := &Runner{Recorder: record.NewFakeRecorder(10)}
		target := Target{Pod: &v1.Pod{}, Container: &v1.Container{Name: "c"}, IP: at.Hostname()}
		message, err := r.Run(t.Context(), target, &v1.LifecycleHandler{
			HTTPGet: &v1.HTTPGetAction{Path: path, Port: intstr.Parse(at.Port())},
		})
		if (err != nil) != c.fails {
			t.Errorf("%s: %s, %v", path, message, err)
		}
		if !slices.Equal(called, c.called) {
			t.Errorf("%s: called %q, want %q", path, called, c.called)
		}
	}
}
