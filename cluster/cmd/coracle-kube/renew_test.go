package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
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

func TestRenewalGoesOnAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		go keepRenewed(ctx, time.Now(), func() error {
			calls++
			return errors.New("the disk is full")
		})
		time.Sleep(3*renewEvery + time.Minute)
		cancel()
		synctest.Wait()
		if calls != 3 {
			t.Errorf("%d looks in three days", calls)
		}
	})
}
