package apiserver

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/metrics/pkg/apis/metrics"
	metricsinstall "k8s.io/metrics/pkg/apis/metrics/install"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/metricsapi"
	"github.com/coracle-project/coracle/cluster/pki"
)

var (
	update = flag.Bool("update", false, "write generated files instead of comparing them")
	// server is one API server that all tests share; each works in namespaces of its own.
	server *Server
	// built is what server was built from.
	built build
	// networked says whether the network of Services existed when the server's hooks began.
	networked atomic.Bool
	// documented restores what the server has forgotten of its routes.
	documented []func()
)

// patience bounds what a test waits for, on however slow a machine; it is never the time that a
// test takes.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(sampleVariable) != "" {
		os.Exit(runSampleServer())
	}
	flag.Parse()
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	code, err := withServer(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withServer(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	options, err := testOptions(dir)
	if err != nil {
		return 1, err
	}
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("static-token,static-user,1,\"group-a,group-b\"\n"), 0o600); err != nil {
		return 1, err
	}
	options.TokenFile = tokens
	scheme := runtime.NewScheme()
	metricsinstall.Install(scheme)
	options.ExtraSchemes = []*runtime.Scheme{scheme}
	options.ExtraAPIGroups = append(options.ExtraAPIGroups, func(g *genericapiserver.GenericAPIServer) error {
		return metricsapi.Install(g, noMetrics{})
	})
	options.followLimit = patience / 2
	options.ExtraAPIGroups = append(options.ExtraAPIGroups, func(g *genericapiserver.GenericAPIServer) error {
		return g.AddPostStartHook("test", func(genericapiserver.PostStartHookContext) error {
			networked.Store(built.hasServiceNetwork())
			return nil
		})
	})
	options.inspect = func(b *build) {
		config, v2, v3 := *b.config, *b.config.OpenAPIConfig, *b.config.OpenAPIV3Config
		// These look into what they were copied from, which the server forgets.
		v2.GetOperationIDAndTagsFromRoute, v3.GetOperationIDAndTagsFromRoute = nil, nil
		config.OpenAPIConfig, config.OpenAPIV3Config = &v2, &v3
		built = *b
		built.config = &config
		reroute(b.proxy)
		for _, container := range b.containers {
			documented = append(documented, keepDocumentation(container)...)
		}
	}
	if server, err = New(options); err != nil {
		return 1, err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	select {
	case <-server.Ready():
	case err := <-ended:
		return 1, err
	case <-time.After(patience):
		return 1, fmt.Errorf("the server was not ready after %v", patience)
	}
	code := m.Run()
	stop()
	return code, <-ended
}

// noMetrics is a metricsapi.Source of a cluster that does nothing.
type noMetrics struct{}

func (noMetrics) NodeMetrics(context.Context) ([]metrics.NodeMetrics, error) { return nil, nil }
func (noMetrics) PodMetrics(context.Context) ([]metrics.PodMetrics, error)   { return nil, nil }

// testOptions are for a server in dir on any free port.
func testOptions(dir string) (Options, error) {
	credentials, err := pki.Ensure(filepath.Join(dir, "pki"), "https://127.0.0.1:1", []string{"127.0.0.1", "localhost"}, nil)
	return Options{Root: dir, State: filepath.Join(dir, "run"), PKI: credentials, Log: slog.Default()}, err
}

// overTLS returns the administrator's configuration for clients that dial.
func overTLS(t *testing.T) *rest.Config { return overTLSOf(t, server) }

// overTLSOf is overTLS of another server than the shared one.
func overTLSOf(t *testing.T, server *Server) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", server.options.PKI.AdminKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Host = "https://" + server.Address().String()
	config.QPS = -1
	return config
}

// clientOf returns a client made from config.
func clientOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// admin returns an administrator's in-process client.
func admin(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	return clientOf(t, server.ClientConfig("admin", "system:masters"))
}

// get sends a GET over TLS with the given headers (in pairs), as an administrator if asked to.
func get(t *testing.T, asAdmin bool, path string, headers ...string) (*http.Response, []byte) {
	t.Helper()
	config := overTLS(t)
	if !asAdmin {
		config = rest.AnonymousClientConfig(config)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return answerTo(t, client, req)
}

// answerTo sends a request, and returns the answer with its body, which has been read.
func answerTo(t *testing.T, client *http.Client, r *http.Request) (*http.Response, []byte) {
	t.Helper()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, data
}

func selfReview() *authenticationv1.SelfSubjectReview { return &authenticationv1.SelfSubjectReview{} }

// eventually asks until the answer is yes: for what takes effect when a part of the server has
// heard of it, which nothing tells.
func eventually(t *testing.T, what string, ask func() (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testkit.Eventually(ctx, t, what, ask)
}

func contains(all []string, one string) bool { return slices.Contains(all, one) }
