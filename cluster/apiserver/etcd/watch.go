package etcd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"github.com/coracle-project/coracle/cluster/health"
)

const (
	// membersEvery is how often a member looks whether there is a leader, and whether the others
	// answer. answerLimit is how long those have.
	membersEvery = 5 * time.Second
	// leaderEvery is how often it looks whether there is another leader, or none any more: that is in
	// memory, and worth a look at the others.
	leaderEvery = time.Second
	answerLimit = 2 * time.Second
	// firstLook comes when an election should be over.
	firstLook = 2 * time.Second
	// aloneFor leaves a machine time to join, whose first request has this server start again.
	aloneFor = 2 * time.Minute
)

// watch tells how the members are, also while the server waits for the others to start.
type watch struct {
	server *Server
	leader func() types.ID
	look   func(context.Context)
	health *health.Part
	others caller
	log    *slog.Logger
	stop   context.CancelFunc
	ended  chan struct{}

	// joins is held for reading while a member is added. Until that is done this one is the last, but
	// must not leave its peers.
	joins      sync.RWMutex
	last       func() bool
	alone      func() error
	aloneFor   time.Duration
	aloneSince time.Time // zero while there are others
}

func watchMembers(s *Server, o Options) *watch {
	o.MembersHealth.Works("waits for the other members")
	ctx, stop := context.WithCancel(context.Background())
	w := &watch{
		server: s, health: o.MembersHealth, others: s.members, log: o.Log, stop: stop, ended: make(chan struct{}),
		last: s.Last, alone: o.Alone, aloneFor: cmp.Or(o.alone, aloneFor),
	}
	w.leader, w.look = s.etcd.Server.Leader, w.askOthers
	go w.run(ctx)
	return w
}

func (w *watch) close() {
	w.stop()
	<-w.ended
}

func (w *watch) run(ctx context.Context) {
	defer close(w.ended)
	next := time.NewTimer(firstLook)
	defer next.Stop()
	again := time.NewTicker(leaderEvery)
	defer again.Stop()
	leader := w.leader()
	for {
		select {
		case <-next.C:
		case <-again.C:
			if w.leader() == leader {
				continue
			}
		case <-ctx.Done():
			return
		}
		leader = w.leader()
		w.look(ctx)
		w.leave()
		next.Reset(membersEvery)
	}
}

// leave calls alone when there have been no others for long enough.
func (w *watch) leave() {
	if !w.joins.TryLock() { // it does not wait: the members are looked at meanwhile
		w.aloneSince = time.Time{}
		return
	}
	defer w.joins.Unlock()
	switch {
	case w.alone == nil:
	case !w.last():
		w.aloneSince = time.Time{}
	case w.aloneSince.IsZero():
		w.aloneSince = time.Now()
	case time.Since(w.aloneSince) >= w.aloneFor:
		if err := w.alone(); err != nil {
			w.log.Warn("etcd keeps its port for other members", "err", err)
		}
	}
}

// askOthers asks the others, and tells.
func (w *watch) askOthers(ctx context.Context) {
	all := w.server.Members()
	answers := make([]bool, len(all))
	var asked sync.WaitGroup
	for i, m := range all {
		if m.Name == w.server.peers.Name {
			answers[i] = true
			continue
		}
		asked.Go(func() { answers[i] = w.others.asks(ctx, m.URL) })
	}
	asked.Wait()
	if ctx.Err() != nil {
		return
	}
	leader := w.leader() != 0
	if message, warnings, err := describe(all, answers, leader); err != nil {
		w.health.Fails(err)
	} else {
		w.health.Works(message, warnings...)
	}
}

func (c caller) asks(ctx context.Context, url string) bool {
	status, err := c.status(ctx, url+"/version")
	return err == nil && status == http.StatusOK
}

// describe is what an operator reads of the members. The error says that there is no quorum, and
// what to do.
func describe(all []Member, answers []bool, leader bool) (message string, warnings []string, err error) {
	voters, voting := 0, 0
	var names, silent []string
	for i, m := range all {
		name := m.Name
		if name == "" {
			name = "(joining)"
		}
		if !answers[i] {
			silent = append(silent, fmt.Sprintf("%s at %s", name, m.URL))
		}
		switch {
		case m.Learner:
			name += " (no vote yet)"
		case m.Leader:
			name += " (leads)"
		}
		names = append(names, name)
		if !m.Learner {
			voters++
			if answers[i] {
				voting++
			}
		}
	}
	slices.Sort(names)
	quorum := voters/2 + 1
	switch {
	case !leader && voting < quorum:
		return "", nil, fmt.Errorf("no quorum: %d of %d control-plane nodes answer, and %d have to; nothing can be read or changed until one of these "+
			"runs again: %s; if they are gone for good, 'coracle down' and 'coracle up --force-new-cluster' on this machine go on with its data "+
			"alone", voting, voters, quorum, strings.Join(silent, ", "))
	case !leader:
		return "", nil, fmt.Errorf("no leader: %d of %d control-plane nodes answer, which is enough: they are electing one", voting, voters)
	}
	message = strings.Join(names, ", ")
	for _, one := range silent {
		message += "; " + one + " does not answer"
		warnings = append(warnings, one+" does not answer: start it, or take it out with 'coracle node remove', by its URL if it never started")
	}
	return message, warnings, nil
}
