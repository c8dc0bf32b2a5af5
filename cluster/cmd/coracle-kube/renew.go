package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/pki"
)

const (
	// renewEvery is how often certificates are looked at while the cluster runs.
	renewEvery = 24 * time.Hour
	// clockEvery is how often the clock is checked. After it was set, certificates may have expired or
	// not be valid yet, and are due, too. A timer alone would not notice.
	clockEvery = time.Minute
	// clockSlack is by how much a clock may be set without a new look at the certificates, and
	// agentClockSlack the same for a node of a cluster elsewhere, whose certificates may begin a few
	// minutes before they are signed.
	clockSlack      = time.Hour
	agentClockSlack = time.Minute
)

// renewer renews the credentials of a cluster while it runs. Their users read the files again.
type renewer struct {
	log *slog.Logger
	// ensure makes credentials that are missing or due.
	ensure func() (*pki.Bundle, error)
	// reload has the API server read them again.
	reload func() error
	part   *health.Part

	mu     sync.Mutex
	next   time.Time // when something is due before the daily look; the zero time for nothing
	logged repeated
}

// renew renews what is due now, and reports the result to the health part.
func (r *renewer) renew() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	bundle, err := r.ensure()
	if err == nil {
		r.next = bundle.Next
		err = r.reload()
	}
	if err != nil {
		r.part.Fails(fmt.Errorf("they cannot be renewed: %w", err))
		return err
	}
	_, err = tellCertificates(r.part, bundle.Dir, r.log, &r.logged)
	return err
}

// tell says how the certificates in dir are, without renewing any.
func (r *renewer) tell(dir string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := tellCertificates(r.part, dir, r.log, &r.logged)
	return err
}

// repeated is a message that may stay true for long. It is logged at once, and then after pauses
// that double, up to renewEvery.
type repeated struct {
	text  string
	pause time.Duration
	next  time.Time
}

// due says whether text, which is true now, is to be logged.
func (r *repeated) due(text string, now time.Time) bool {
	switch {
	case text != r.text:
		r.text, r.pause = text, 0
	case now.Before(r.next):
		return false
	}
	r.pause = min(max(2*r.pause, clockEvery), renewEvery)
	r.next = now.Add(r.pause)
	return text != ""
}

// lookAgain is how long after a look at certificates the next one follows, if the first of them
// expires at a time: a day, and less for those that are short.
func lookAgain(expires, now time.Time) time.Duration {
	return min(renewEvery, max(clockEvery, expires.Sub(now)/2))
}

// tellCertificates says which certificate in a directory expires first, and warns of those that
// ought to have been renewed. It returns when the first expires.
func tellCertificates(part *health.Part, dir string, log *slog.Logger, logged *repeated) (expires time.Time, err error) {
	all, err := pki.List(dir)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("there are none in %s", dir)
	}
	if err != nil {
		part.Fails(err)
		return time.Time{}, err
	}
	var warnings []string
	for _, c := range all {
		if c.Warning != "" {
			warnings = append(warnings, c.File+": "+c.Warning)
		}
	}
	if logged.due(strings.Join(warnings, "; "), time.Now()) {
		for _, c := range all {
			if c.Warning != "" {
				log.Warn("a certificate", "file", c.File, "warning", c.Warning)
			}
		}
	}
	part.Works(fmt.Sprintf("%s; %s expires first, on %s", health.Count(len(all), "certificate"), all[0].File,
		all[0].Expires.Local().Format(time.DateTime)),
		warnings...)
	return all[0].Expires, nil
}

// due says whether renew is due for another reason than the time that passed.
func (r *renewer) due(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.next.IsZero() && !now.Before(r.next)
}

// run calls renew whenever it is due, until ctx ends. The credentials were made good at the time
// last.
func (r *renewer) run(ctx context.Context, last time.Time) {
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		if due(sinceThen(last, now)) || r.due(now) {
			if err := r.renew(); err != nil {
				r.log.Error("certificates cannot be renewed", "err", err)
			}
			last = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// errClock ends a process whose clock was set before it served.
var errClock = fmt.Errorf("%w: the clock was set, and the certificates may be of the time before", errAgain)

// waitReady waits until ready is closed or ctx ends. It fails with errClock if the clock was set
// meanwhile, by what elapsed says has passed since the certificates were made good. A member of
// etcd waits for the others without a limit, and they refuse a certificate of a wrong time: without
// another start it would wait for ever.
func waitReady(ctx context.Context, ready <-chan struct{}, elapsed func() (passed, byClock time.Duration)) error {
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	for {
		select {
		case <-ready: // the renewer looks at the clock from here on
			return nil
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if passed, byClock := elapsed(); wasSet(passed, byClock, clockSlack) {
				return errClock
			}
		}
	}
}

// sinceThen is how much time has passed from then to now, in truth and by the clock.
func sinceThen(then, now time.Time) (passed, byClock time.Duration) {
	return now.Sub(then), now.Round(0).Sub(then.Round(0))
}

// answerRenew makes the credentials good: what `coracle certificate rotate` asks for.
func (r *renewer) answerRenew(w http.ResponseWriter, asked *http.Request) {
	if asked.Method != http.MethodPost {
		http.Error(w, "only POST renews certificates", http.StatusMethodNotAllowed)
		return
	}
	if err := r.renew(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answerJSON(w, struct{}{})
}

// due says whether certificates have to be looked at when so much time has passed since the last
// look, in truth and by the clock.
func due(passed, byClock time.Duration) bool {
	return passed >= renewEvery || wasSet(passed, byClock, clockSlack)
}

// wasSet says whether the clock was set by more than slack while so much time has passed, in truth
// and by the clock.
func wasSet(passed, byClock, slack time.Duration) bool { return (byClock - passed).Abs() > slack }

// newRenewer returns what keeps the credentials of a cluster and its own node.
func newRenewer(server *apiserver.Server, api *apiOptions, n *nodeOptions, board *health.Board) *renewer {
	return &renewer{log: server.Log(), reload: server.ReloadCredentials, part: board.Add("certificates"), ensure: func() (*pki.Bundle, error) {
		bundle, err := api.credentials(n.name, n.ips)
		if err != nil {
			return nil, err
		}
		_, err = nodeFiles(bundle, n)
		return bundle, err
	}}
}
