package client

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An outage costs one attempt per second, and one line in the log.
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
		if err := l.health(); err == nil || !strings.Contains(err.Error(), "unreachable for 1m0s") {
			t.Errorf("health: %v", err)
		}
	})
}

// A shim is attended to only while an answer is expected, and not on an idle node.
func TestIdleShimIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink("node", &Config{Log: slog.New(slog.DiscardHandler), limits: defaultLimits()})
		fired := 0
		l.attention.timer = time.AfterFunc(time.Hour, func() { fired++ })
		for range 3 {
			done := l.begin()
			time.Sleep(l.limits.attend - 1)
			done()
			done() // counts only once
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if fired != 0 || l.attention.pending != 0 {
			t.Errorf("attended to %d times, %d calls pending", fired, l.attention.pending)
		}
		first, second := l.begin(), l.begin()
		first()
		time.Sleep(l.limits.attend)
		synctest.Wait()
		if fired != 1 {
			t.Errorf("attended to %d times while a call was pending", fired)
		}
		second()
	})
}

// A shim that hangs takes no more requests when its socket is full, and the connection is closed
// for that. It was taken for an answer, so that the shim with the most callers was replaced the
// latest.
func TestEndOfConnectionIsNoAnswer(t *testing.T) {
	c, l, _ := fakeClient(t, 0) // the socket is listened on, and no one accepts
	l.limits.ping = 20 * time.Millisecond
	k, err := l.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	l.set(k, nil)
	var p pinger
	for i := range 3 {
		if i == 1 {
			_ = k.Close()
			<-k.lost
		}
		began := time.Now()
		if p.ping(c.ctx, l) || time.Since(began) < l.limits.ping {
			t.Errorf("ping %d counts as answered after %v", i, time.Since(began))
		}
	}
}

// BenchmarkBegin is what noticing a hang adds to each call.
func BenchmarkBegin(b *testing.B) {
	l := newLink("node", &Config{Log: slog.New(slog.DiscardHandler), limits: defaultLimits()})
	l.attention.timer = time.AfterFunc(time.Hour, func() {})
	for b.Loop() {
		l.begin()()
	}
}
