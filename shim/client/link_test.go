package client

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An outage costs an attempt a second, and a line in the log.
func TestOutageIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		c, err := New(Config{Binary: "/no/such", StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		l := newLink("node", &c.cfg)
		l.attention.timer = time.AfterFunc(time.Hour, func() {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var r retry
		l.await(ctx, c, &r)
		if r.tries < 50 || r.tries > 70 {
			t.Errorf("%d attempts in a minute", r.tries)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("log has %d lines:\n%s", n, log.String())
		}
		if err := l.health(); err == nil || !strings.Contains(err.Error(), "not reached for 1m0s") {
			t.Errorf("health: %v", err)
		}
	})
}
