package apiserver

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

// A response that a panic cuts short does not look whole to the client.
func TestPanicsAbortResponses(t *testing.T) {
	SurvivePanics()
	log := slog.New(slog.DiscardHandler)
	for name, p := range map[string]any{"an abort": http.ErrAbortHandler, "a panic": "odd object"} {
		t.Run(name, func(t *testing.T) {
			handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, `{"items":[`)
				w.(http.Flusher).Flush()
				panic(p)
			})
			resolve := &request.RequestInfoFactory{}
			chain := genericfilters.WithPanicRecovery(abortingOnPanic(handler, log), resolve)
			server := httptest.NewServer(recordingAborts(chain, resolve, log))
			defer server.Close()
			resp, err := http.Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != `{"items":[` {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
