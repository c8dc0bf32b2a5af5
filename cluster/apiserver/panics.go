package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// SurvivePanics keeps panics in upstream's goroutines from ending the process: they are logged, and
// most loops go on after a pause. Upstream has each of its programs end instead, but here all of
// them are one process.
//
// Aborted requests still panic: the HTTP server must see it, or the client takes what was sent so
// far for the whole response.
var SurvivePanics = sync.OnceFunc(func() {
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(_ context.Context, r any) {
		if r == http.ErrAbortHandler { //nolint:errorlint // the sentinel itself is what handlers panic with
			panic(r)
		}
	})
})

// abortingOnPanic ends the connection, or the stream, of a request whose handler panics.
func abortingOnPanic(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p != http.ErrAbortHandler { //nolint:errorlint // see above
				log.Error("handler panicked", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler)
		}()
		next.ServeHTTP(w, r)
	})
}

// recordingAborts counts and logs aborted requests: upstream's recovery, which is further inside,
// does not get to it once SurvivePanics was called.
func recordingAborts(next http.Handler, resolve request.RequestInfoResolver, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			info, _ := resolve.NewRequestInfo(r) // nil is allowed
			metrics.RecordRequestAbort(r, info)
			log.Warn("request aborted", "method", r.Method, "path", r.URL.Path)
			panic(p)
		}()
		next.ServeHTTP(w, r)
	})
}
