// Package servertest runs API servers for tests.
package servertest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/pki"
)

// Options returns those of a server with new credentials, in directories that end with the test.
func Options(t *testing.T) apiserver.Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // t.TempDir's name is too long for a socket's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	credentials, err := pki.Ensure(filepath.Join(dir, "pki"), "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return apiserver.Options{
		Root: dir, State: filepath.Join(dir, "run"), PKI: credentials, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
}

// New returns a server that does not run yet.
func New(t *testing.T, o apiserver.Options) *apiserver.Server {
	t.Helper()
	server, err := apiserver.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// Run runs a server until the test has ended, after what the test has registered later to be
// cleaned up. It returns when the server is ready.
func Run(t *testing.T, server *apiserver.Server) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-server.Ready():
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
}
