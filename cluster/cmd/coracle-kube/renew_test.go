package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/pki"
)

func TestCertificatesAreLookedAtDailyAndWhenTheClockWasSet(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		passed, byClock time.Duration
		want            bool
	}{
		"a minute later":                {time.Minute, time.Minute, false},
		"the clock was adjusted":        {time.Minute, 2 * time.Minute, false},
		"the clock was set forward":     {time.Minute, year, true},
		"the clock was set back":        {time.Minute, -year, true},
		"it was set back, and days ago": {3 * renewEvery, -year, true},
		"a day later":                   {renewEvery, renewEvery, true},
	} {
		if got := due(c.passed, c.byClock); got != c.want {
			t.Errorf("%s: due is %v", name, got)
		}
	}
}

// Regression: a node of a cluster elsewhere said nothing for up to a day of certificates that its
// clock made invalid.
func TestANodeNoticesThatItsClockWasSet(t *testing.T) {
	for name, c := range map[string]struct {
		byClock time.Duration
		want    bool
	}{
		"it was not set":     {time.Minute + time.Second, false},
		"it was set forward": {time.Hour + time.Minute, true},
		"it was set back":    {time.Minute - time.Hour, true},
	} {
		if got := wasSet(time.Minute, c.byClock, agentClockSlack); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Regression: a control-plane node that started with a wrong clock had made its certificate for the
// other members of etcd for that time. They refused it also when the clock was right, and the
// process waited for them until someone started it again.
func TestAServerThatWaitsStartsAgainWhenItsClockWasSet(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		set   time.Duration // by how much the clock is set after half an hour
		ready time.Duration
		again time.Duration // when the process is to start again, 0 if it is not
	}{
		"it was not set":                     {0, 2 * time.Hour, 0},
		"it was adjusted":                    {time.Minute, 2 * time.Hour, 0},
		"it was set forward":                 {year, 2 * time.Hour, 30 * time.Minute},
		"it was set back":                    {-year, 2 * time.Hour, 30 * time.Minute},
		"it was set, and all members answer": {year, 20 * time.Minute, 0},
		"it was set after the start":         {year, 10 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, ready := time.Now(), make(chan struct{})
				defer time.AfterFunc(c.ready, func() { close(ready) }).Stop()
				err := waitReady(t.Context(), ready, func() (passed, byClock time.Duration) {
					if passed = time.Since(began); passed >= 30*time.Minute {
						return passed, passed + c.set
					}
					return passed, passed
				})
				after := time.Since(began)
				if c.again != 0 && (!errors.Is(err, errAgain) || after != c.again) || c.again == 0 && (err != nil || after != c.ready) {
					t.Errorf("after %v: %v", after, err)
				}
			})
		})
	}
}

func TestAServerThatEndsBeforeItServes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waitReady(ctx, nil, nil); err != nil {
		t.Error(err)
	}
}

func TestRenewalGoesOnAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		var board health.Board
		r := renewer{log: discard, part: board.Add("certificates"), ensure: func() (*pki.Bundle, error) {
			calls++
			return nil, errors.New("the disk is full")
		}}
		go r.run(ctx, time.Now())
		time.Sleep(3*renewEvery + time.Minute)
		cancel()
		synctest.Wait()
		if calls != 3 {
			t.Errorf("%d looks in three days", calls)
		}
		if s := board.States()[0]; s.Healthy || s.Message != "they cannot be renewed: the disk is full" {
			t.Errorf("the part says %+v", s)
		}
	})
}

// What is due before the next daily look is done then, and status warns of what was not renewed.
func TestRenewalsThatAreDue(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var looks []time.Duration
		began, reloads := time.Now(), 0
		var board health.Board
		r := renewer{log: discard, part: board.Add("certificates"), reload: func() error { reloads++; return nil }}
		r.ensure = func() (*pki.Bundle, error) {
			looks = append(looks, time.Since(began))
			b, err := pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
			if err == nil && len(looks) == 1 {
				b.Next = began.Add(time.Hour)
			}
			return b, err
		}
		if err := r.renew(); err != nil {
			t.Fatal(err)
		}
		const message = "6 certificates; admin.kubeconfig expires first"
		if s := board.States()[0]; !s.Healthy || len(s.Warnings) != 0 || !strings.Contains(s.Message, message) {
			t.Errorf("the part says %+v", s)
		}
		go r.run(ctx, began)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if len(looks) != 2 || looks[1] != time.Hour || reloads != 2 {
			t.Errorf("looks at %v, %d reloads", looks, reloads)
		}
		cancel()
		synctest.Wait()
		time.Sleep(355 * 24 * time.Hour)
		if _, err := tellCertificates(r.part, dir, r.log, &r.logged); err != nil {
			t.Error(err)
		}
		if s := board.States()[0]; len(s.Warnings) != 4 || !strings.HasPrefix(s.Warnings[0], "admin.kubeconfig: it expires on") {
			t.Errorf("the part says %+v", s)
		}
	})
}

// Regression: certificates with a life of minutes were looked at once a day, and their end was not
// told.
func TestShortCertificatesAreLookedAtMoreOften(t *testing.T) {
	now := time.Now()
	for left, want := range map[time.Duration]time.Duration{
		365 * 24 * time.Hour: renewEvery, time.Hour: 30 * time.Minute, time.Minute: time.Minute, -time.Hour: time.Minute,
	} {
		if got := lookAgain(now.Add(left), now); got != want {
			t.Errorf("with %v left, the next look is after %v, want %v", left, got, want)
		}
	}
}

// Regression: a node logged each minute that its certificates have expired, or cannot be read.
func TestExpiredCertificatesAreLoggedWithGrowingPauses(t *testing.T) {
	for name, expired := range map[string]bool{"expired": true, "missing": false} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				want := "the node's certificates"
				if expired {
					if _, err := pki.Ensure(credentialsDir(root), "https://127.0.0.1:1", []string{"127.0.0.1"}, nil); err != nil {
						t.Fatal(err)
					}
					time.Sleep(2 * 365 * 24 * time.Hour)
					want = "file=admin.kubeconfig"
				}
				var said bytes.Buffer
				var board health.Board
				a := agent{nodeOptions: nodeOptions{log: slog.New(slog.NewTextHandler(&said, nil))}, root: root}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if err := a.tellCertificates(board.Add("certificates"))(ctx); err != nil {
					t.Error(err)
				}
				// After 0, 1, 3, 7, 15 and 31 minutes.
				if n := strings.Count(said.String(), want); n != 6 {
					t.Errorf("it is logged %d times in an hour:\n%s", n, &said)
				}
			})
		})
	}
}
