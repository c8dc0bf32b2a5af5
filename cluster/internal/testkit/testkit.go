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
	// more is closed by the next write; nil while no one waits for it.
	more chan struct{}
}

// Logger returns a logger that writes to l.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return l.text.Write(p)
}

// Await returns when a text was logged. The test fails if that takes longer than Patience.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	late := time.After(Patience)
	for {
		said, more := l.look()
		if strings.Contains(said, text) {
			return
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("%q was not logged:\n%s", text, said)
		}
	}
}

// look returns all that was logged, and what is closed when there is more.
func (l *Log) look() (said string, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return l.text.String(), l.more
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
