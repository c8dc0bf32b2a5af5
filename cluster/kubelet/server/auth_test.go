package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/pki"
)

func TestSubresources(t *testing.T) {
	for path, want := range map[string]string{
		"/stats/summary": "stats", "/metrics": "metrics", "/metrics/resource": "metrics", "/logs/": "log", "/logs/x": "log",
		"/checkpoint/a/b/c": "checkpoint",
		"/pods":             "pods proxy", "/pods/": "pods proxy", "/runningpods/": "pods proxy", "/healthz": "healthz proxy",
		"/healthz/ping": "healthz proxy", "/configz": "configz proxy",
		"/exec/a/b/c": "proxy", "/run/a/b/c": "proxy", "/attach/a/b/c": "proxy", "/portForward/a/b": "proxy", "/containerLogs/a/b/c": "proxy",
		"/": "proxy", "/statsx": "proxy", "/podsx/y": "proxy", "/exec/../stats": "proxy", "//stats": "proxy",
	} {
		if got := strings.Join(subresources(path), " "); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

type decider func(authorizer.Attributes) (authorizer.Decision, error)

func (d decider) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, err := d(a)
	return decision, "", err
}

type unknown struct{ err error }

func (s unknown) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return nil, false, s.err
}

func TestWhoMayNot(t *testing.T) {
	var asked []string
	deny := decider(func(a authorizer.Attributes) (authorizer.Decision, error) {
		asked = append(asked, a.GetVerb()+" "+a.GetResource()+"/"+a.GetName()+"/"+a.GetSubresource())
		return authorizer.DecisionNoOpinion, nil
	})
	for _, c := range []struct {
		name   string
		change func(*Options)
		method string
		target string
		code   int
		body   string
		asked  []string
	}{
		{"unknown", func(o *Options) { o.Authenticator = unknown{} }, "GET", "/pods", 401, "Unauthorized", nil},
		{"bad certificate", func(o *Options) { o.Authenticator = unknown{errors.New("expired")} }, "GET", "/pods", 401, "Unauthorized", nil},
		{
			"forbidden", func(o *Options) { o.Authorizer = deny }, "POST", "/exec/ns/p/c?command=sh&output=1", 403,
			"Forbidden (user=tester, verb=create, resource=nodes, subresource(s)=[proxy])\n",
			[]string{"create nodes/n1/proxy"},
		},
		{
			"forbidden both ways", func(o *Options) { o.Authorizer = deny }, "GET", "/pods", 403,
			"Forbidden (user=tester, verb=get, resource=nodes, subresource(s)=[pods proxy])\n",
			[]string{"get nodes/n1/pods", "get nodes/n1/proxy"},
		},
		{"API server away", func(o *Options) {
			o.Authorizer = decider(func(authorizer.Attributes) (authorizer.Decision, error) {
				return authorizer.DecisionNoOpinion, errors.New("away")
			})
		}, "GET", "/healthz", 500, "Authorization error (user=tester, verb=get, resource=nodes, subresource=healthz)", nil},
	} {
		asked = nil
		s, _, _ := newServer(t, c.change)
		w := ask(s, c.method, c.target)
		if w.Code != c.code || w.Body.String() != c.body || !reflect.DeepEqual(asked, c.asked) {
			t.Errorf("%s: %d %q after %v, want %d %q after %v", c.name, w.Code, w.Body, asked, c.code, c.body, c.asked)
		}
	}
}

// Without an authenticator and authorizer of their own, requests are judged by the API server.
func TestDelegatedAuth(t *testing.T) {
	api := http.NewServeMux()
	api.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User.Username = "prometheus"
		writeJSON(w, review)
	})
	api.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		at := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && at.Resource == "nodes" && at.Name == "n1" && at.Subresource == "metrics" &&
			at.Verb == "get"
		writeJSON(w, review)
	})
	web := httptest.NewServer(api)
	t.Cleanup(web.Close)
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	s, _, _ := newServer(t, func(o *Options) { o.Authenticator, o.Authorizer, o.Kube = nil, nil, kube })
	for _, c := range []struct {
		token, target string
		code          int
	}{
		{"", "/metrics/resource", 401}, {"bad", "/metrics/resource", 401}, {"good", "/metrics/resource", 200}, {"good", "/pods", 403},
	} {
		r, _ := http.NewRequest("GET", c.target, nil)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		w := record(s, r)
		if w.Code != c.code {
			t.Errorf("%q on %s: %d %s", c.token, c.target, w.Code, w.Body)
		}
	}
}

// The API server's certificate may be of another authority than when the kubelet started.
func TestAnotherClientAuthority(t *testing.T) {
	ensure := func() *pki.Bundle {
		t.Helper()
		b, err := pki.Ensure(t.TempDir(), "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first, second := ensure(), ensure()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, _, _ := newServer(t, func(o *Options) {
		o.Listener, o.Authenticator, o.Kube, o.ClientCAFile = listener, nil, fake.NewClientset(), first.CACert
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	code := func(pair string) (int, error) {
		cert, err := tls.LoadX509KeyPair(pair, pair)
		if err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		answer, err := client.Get("https://" + listener.Addr().String() + "/metrics/resource")
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	for pair, want := range map[string]int{first.KubeletClient: 200, second.KubeletClient: 401} {
		if got, err := code(pair); got != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", pair, got, err, want)
		}
	}
	both := slices.Concat(contents(t, first.CACert), contents(t, second.CACert))
	if err := pki.Replace(first.CACert, both, 0o644); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t.Context(), t, "the other authority is followed", func() (bool, error) {
		got, err := code(second.KubeletClient)
		return got == 200, err
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func contents(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestNewNeedsSomeoneToAsk(t *testing.T) {
	if _, err := New(newFakeHost(), nil, Options{}); err == nil {
		t.Error("a server that cannot ask who may use it was made")
	}
	if _, err := New(newFakeHost(), nil, Options{ClientCAFile: "auth_test.go", Kube: fake.NewClientset()}); err == nil {
		t.Error("took a client CA that is none")
	}
}

// Regression: it waited for what follows the authority of clients, which ends with the context.
func TestRunReturnsItsError(t *testing.T) {
	b, err := pki.Ensure(t.TempDir(), "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, _, _ := newServer(t, func(o *Options) {
		o.Listener, o.Authenticator, o.Kube, o.ClientCAFile = listener, nil, fake.NewClientset(), b.CACert
	})
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("it has served without a listener")
	}
}
