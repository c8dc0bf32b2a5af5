package main

import (
	"context"
	"log/slog"
	"strings"

	"github.com/coracle-project/coracle/cluster/apiserver/direct"
)

// upstreamLog passes on what upstream's packages log, but for errors that need no one's attention.
// They are logged for debugging only:
//   - those that say that the client has gone: it closed its connection, gave up a watch, or was
//     cut off by the end of the process. The API server logs several of them each time;
//   - those of informers that read after this process's API server has stopped, one of each kind;
//   - those of imported controllers that wait for the event of their own last write. In this
//     process the answer comes before the event, and they look again some milliseconds later.
type upstreamLog struct{ slog.Handler }

// gone are what such errors end in or are about. A request that really took too long is still told
// of, by "Timeout or abort while handling".
var gone = []string{
	"context canceled",
	"request cancelled",
	"http: Handler timeout",
	"http2: stream closed",
	"inproc: the client has gone",
	"use of closed network connection",
	"websocket: close 1006",
	"terminated signal received",
	direct.ErrStopped.Error(),
	"ost-timeout activity", // what a handler did after it was given up
}

// early is what the error of a controller that has to wait for an event says
// (k8s.io/kubernetes/pkg/controller/util/consistency).
const early = "is not as new as written version"

// Handle implements slog.Handler.
func (q upstreamLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && harmless(r) {
		if !q.Enabled(ctx, slog.LevelDebug) {
			return nil
		}
		r.Level = slog.LevelDebug
	}
	return q.Handler.Handle(ctx, r)
}

func harmless(r slog.Record) bool {
	found := says(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		found = found || a.Key == "err" && says(a.Value.String())
		return !found
	})
	return found
}

func says(text string) bool {
	for _, g := range gone {
		if strings.Contains(text, g) {
			return true
		}
	}
	return strings.Contains(text, early)
}

// WithAttrs implements slog.Handler.
func (q upstreamLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return upstreamLog{q.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (q upstreamLog) WithGroup(name string) slog.Handler {
	return upstreamLog{q.Handler.WithGroup(name)}
}
