package kubesocket

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/coracle-project/coracle/cmd/coracle/kubesocket/kubesockettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers on a socket with handlers, by path.
func serve(t *testing.T, handlers map[string]http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "sock")
	kubesockettest.Serve(t, socket, handlers)
	return socket
}

func TestParts(t *testing.T) {
	if _, err := Parts(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, ErrNone) {
		t.Errorf("without a socket: %v", err)
	}
	if parts, err := Parts(t.Context(), serve(t, nil)); err != nil || len(parts) != 0 {
		t.Errorf("of an earlier release: %v, %v", parts, err)
	}
	var waited bool
	socket := serve(t, map[string]http.HandlerFunc{"/healthz/parts": func(w http.ResponseWriter, r *http.Request) {
		waited = r.URL.Query().Has("wait")
		_, _ = fmt.Fprint(w, `[{"component": "DNS", "healthy": true, "since": "2026-01-01T00:00:00Z", "message": "answers", "warnings": ["w"]}]`)
	}})
	for _, ask := range []func(context.Context, string) ([]Part, error){Parts, AwaitParts} {
		parts, err := ask(t.Context(), socket)
		if err != nil || len(parts) != 1 || parts[0].Component != "DNS" || !parts[0].Healthy || parts[0].Since.Year() != 2026 ||
			parts[0].Warnings[0] != "w" {
			t.Errorf("%+v, %v", parts, err)
		}
	}
	if !waited {
		t.Error("AwaitParts has not asked to wait")
	}
}

// A process that does not answer, answers with an error, or with something else.
func TestAskFails(t *testing.T) {
	socket := serve(t, map[string]http.HandlerFunc{
		"/hung": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"/wrong": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "pod a/b does not exist", http.StatusBadRequest)
		},
		"/text": func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "hello") },
	})
	for path, want := range map[string]string{
		"/hung":  "context deadline exceeded",
		"/wrong": "pod a/b does not exist",
		"/text":  "the cluster process at " + socket + " answers /text: invalid character",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if path != "/hung" {
			ctx = t.Context()
		}
		err := Ask(ctx, socket, path, nil, &[]Part{})
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
