package main

import (
	"context"
	"log/slog"
	"strings"
)

// quiet passes on what upstream's packages log, but for errors that only say that whoever had asked does
// not want to know any more: a client that closed its connection, a watch that was given up, a request that
// the end of the process cut off. The API server calls these errors, of several on one such occasion, and
// nothing is wrong and nothing to be done: they are for who debugs.
type quiet struct{ slog.Handler }

// gone are what such errors end in or are about. A request that really took too long is still told of, by
// "Timeout or abort while handling".
var gone = []string{
	"context canceled",
	"request cancelled",
	"http: Handler timeout",
	"http2: stream closed",
	"inproc: the client has gone",
	"use of closed network connection",
	"websocket: close 1006",
	"terminated signal received",
	"ost-timeout activity", // what a handler did after it was given up
}

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && ofSomeoneGone(r) {
		if !q.Enabled(ctx, slog.LevelDebug) {
			return nil
		}
		r.Level = slog.LevelDebug
	}
	return q.Handler.Handle(ctx, r)
}

func ofSomeoneGone(r slog.Record) bool {
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
	return false
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
