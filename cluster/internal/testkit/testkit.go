// Package testkit is what tests of several packages have in common.
package testkit

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Log is what its Logger was told.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Logger returns a logger that writes to l.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how often a text was logged.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Patience is how long Eventually asks if ctx has no deadline.
const Patience = time.Minute

// Eventually asks until the answer is yes: for what takes effect when a part of a program has heard
// of something, which no API tells. The test fails when ctx ends first; what and the error of the
// last answer say why.
func Eventually(ctx context.Context, t testing.TB, what string, ask func() (bool, error)) {
	t.Helper()
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Patience)
		defer cancel()
	}
	var last error
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		var ok bool
		ok, last = ask()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("%s: %v; last answer %v", what, err, last)
	}
}
