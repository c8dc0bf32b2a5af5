package main

import (
	"context"
	"log/slog"
	"time"
)

const (
	// renewEvery is how often certificates are looked at while the cluster runs.
	renewEvery = 24 * time.Hour
	// clockEvery is how often the clock is looked at: one that was set may have taken the
	// certificates to before or beyond their time, and they are due then, too. A timer alone would
	// not notice.
	clockEvery = time.Minute
	// clockSlack is what a clock may be set without anybody minding.
	clockSlack = time.Hour
)

// keepRenewed calls renew whenever it is due, until ctx ends. It was called last at the time last.
func keepRenewed(ctx context.Context, last time.Time, renew func() error) {
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		if !due(now.Sub(last), now.Round(0).Sub(last.Round(0))) {
			continue
		}
		if err := renew(); err != nil {
			slog.Error("certificates cannot be renewed", "err", err)
		}
		last = now
	}
}

// due says whether certificates have to be looked at when so much time has passed since the last
// look, in truth and by the clock.
func due(passed, byClock time.Duration) bool {
	return passed >= renewEvery || (byClock-passed).Abs() > clockSlack
}

// renewed makes sure that the certificates of a cluster that runs for longer than they last are
// good. Who uses them looks at their files.
func renewed(api *apiOptions, n *nodeOptions) error {
	bundle, err := api.credentials(n.name, n.ips)
	if err != nil {
		return err
	}
	_, err = nodeFiles(bundle, n)
	return err
}
