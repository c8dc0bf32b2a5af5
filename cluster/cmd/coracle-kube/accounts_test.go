package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-project/coracle/cluster/apiserver/servertest"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers"
	"github.com/coracle-project/coracle/cluster/controllers/rootca"
)

// whoami returns the name that the API knows the identity in config by.
func whoami(t *testing.T, config *rest.Config) string {
	t.Helper()
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	review, err := kube.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.UserInfo.Username
}

// The controllers of `coracle-kube controllers` act as their service accounts, whatever the
// kubeconfig's credentials are.
func TestControllersAloneActAsTheirAccounts(t *testing.T) {
	o := servertest.Options(t)
	dir, bundle := o.Root, o.PKI
	users := filepath.Join(dir, "users.csv")
	if err := os.WriteFile(users, []byte("secret,bearer,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.TokenFile = users
	server := servertest.New(t, o)
	servertest.Run(t, server)
	admin := filepath.Join(dir, "admin.kubeconfig")
	if err := bundle.Kubeconfig(admin, "certificate", "system:masters"); err != nil {
		t.Fatal(err)
	}
	certificate, err := clientcmd.BuildConfigFromFlags("https://"+server.Address().String(), admin)
	if err != nil {
		t.Fatal(err)
	}
	bearer := rest.AnonymousClientConfig(certificate)
	bearer.BearerToken = "secret"
	tokenFile := rest.AnonymousClientConfig(certificate)
	tokenFile.BearerTokenFile = filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile.BearerTokenFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		config *rest.Config
		user   string
	}{{"certificate", certificate, "certificate"}, {"token", bearer, "bearer"}, {"token file", tokenFile, "bearer"}} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.QPS = -1
			if got := whoami(t, tt.config); got != tt.user {
				t.Fatalf("the kubeconfig's user is %s, want %s", got, tt.user)
			}
			manager, err := client.New(tt.config, server.Informers(), nil)
			if err != nil {
				t.Fatal(err)
			}
			account, err := accounts(t.Context(), manager)
			if err != nil {
				t.Fatal(err)
			}
			made := map[string]*client.Set{}
			_, err = controllers.New(controllers.Identities{Manager: manager, Account: func(name string) (*client.Set, error) {
				set, err := account(name)
				made[name] = set
				return set, err
			}}, controllers.Options{RootCA: rootca.Fixed("CA")})
			if err != nil || len(made) < 15 {
				t.Fatalf("%d accounts, %v", len(made), err)
			}
			for name, set := range made {
				if got, want := whoami(t, set.Config), "system:serviceaccount:kube-system:"+name; got != want {
					t.Errorf("%s acts as %s", name, got)
				}
			}
		})
	}
}

// kubeconfig writes one for the API at url.
func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: url}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// An API server that is not ready yet is waited for, and nothing else is asked of it meanwhile.
func TestControllersAloneWaitForTheAPIServer(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	enough := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.URL.Path)
		if len(asked) <= 2 {
			w.Header().Set("Retry-After", "3600")
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path != "/readyz" {
			select {
			case <-enough:
			default:
				close(enough)
			}
			http.Error(w, "no", http.StatusForbidden)
		}
	}))
	defer api.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := command(discard, &slog.LevelVar{}, nil)
	cmd.SetArgs([]string{"controllers", "--kubeconfig", kubeconfig(t, api.URL)})
	err := cmd.ExecuteContext(ctx)
	select {
	case <-enough:
	default:
		t.Error("no account was asked for")
	}
	mu.Lock()
	defer mu.Unlock()
	want := "[/readyz /readyz /readyz /api/v1/namespaces/kube-system/serviceaccounts/ttl-after-finished-controller]"
	if got := fmt.Sprint(asked); got != want {
		t.Errorf("asked for %s, want %s (%v)", got, want, err)
	}
}

// A signal ends the start, without an error: while the API server cannot be reached, and while it
// is silent after it was ready.
func TestControllersAloneEndWhileTheyStart(t *testing.T) {
	for name, ready := range map[string]bool{"not ready": false, "silent": true} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended := make(chan struct{})
			api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/readyz" && ready {
					return
				}
				stop()
				<-ended // it never answers
			}))
			defer api.Close()
			defer close(ended)
			cmd := command(discard, &slog.LevelVar{}, nil)
			cmd.SetArgs([]string{"controllers", "--kubeconfig", kubeconfig(t, api.URL)})
			result := make(chan error, 1)
			go func() { result <- cmd.ExecuteContext(ctx) }()
			select {
			case err := <-result:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(callLimit / 2):
				t.Fatal("it did not end")
			}
		})
	}
}

// A call that is not answered ends by itself.
func TestCallsForAccountsAreBounded(t *testing.T) {
	request := func(r *http.Request) (*http.Response, error) {
		deadline, ok := r.Context().Deadline()
		if left := time.Until(deadline); !ok || left > callLimit {
			t.Errorf("it may take %v (%v)", left, ok)
		}
		return nil, errors.New("refused")
	}
	config := &rest.Config{Host: "http://127.0.0.1:1", Transport: roundTripper(request)}
	set, err := client.New(config, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	account, err := accounts(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := account("x"); err == nil {
		t.Error("the account was made without an API server")
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
