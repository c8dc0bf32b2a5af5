package peer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// Pull is one image on its way to this node. A nil Pull knows no other node: all comes from the
// registry.
type Pull struct {
	s          *Swarm
	repository string
	self       string
	asked      []*node       // others are added when an answer tells of them; guarded by s.mu
	asking     chan struct{} // holds one element while nodes are asked

	wants     map[digest.Digest]*want // what they point to is guarded by s.mu, as the next
	refreshed time.Time               // when the last answers were in
	rest      map[*node]time.Time     // until when a node is not asked again
}

// want is a blob that a pull has to fetch. All of it is guarded by Swarm.mu.
type want struct {
	claimed bool // the registry is being asked
	done    bool
	givenUp bool      // no node is asked for it any more
	since   time.Time // when it began to wait for a node; zero unless it waits
	turns   int       // how often it waited in vain; at maxTurns it waits for no one any more
	answers map[*node]State
	busy    map[*node]refusal
	failed  map[*node]bool
	rivals  map[string]time.Time // nodes that have said that they want it, and when
	passed  map[string]bool      // nodes that did not take their turn
}

// refusal says that a node which has a blob was too busy to send it.
type refusal struct {
	times int
	until time.Time // when it may be asked for the blob again
}

// rivalFor is how long a node counts as a rival after it has said that it wants a blob. While it
// waits it repeats that, and this node asks it before each claim.
const rivalFor = 5 * time.Second

// Pull begins to pull an image; nil if there is no other node. End ends it.
func (s *Swarm) Pull(repository string, blobs []digest.Digest) *Pull {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.nodes) == 0 || len(blobs) == 0 {
		return nil
	}
	p := &Pull{
		s: s, repository: repository, self: s.settings.Self, asking: make(chan struct{}, 1),
		wants: map[digest.Digest]*want{}, rest: map[*node]time.Time{},
	}
	for _, b := range blobs {
		p.wants[b] = &want{
			answers: map[*node]State{}, busy: map[*node]refusal{}, failed: map[*node]bool{},
			rivals: map[string]time.Time{}, passed: map[string]bool{},
		}
	}
	// All nodes that pull an image ask the same nodes, except themselves. Those tell each of the
	// others, however many nodes there are.
	p.asked = slices.Clone(s.nodes)
	slices.SortFunc(p.asked, func(a, b *node) int { return cmp.Compare(weight(repository, b.Name), weight(repository, a.Name)) })
	p.asked = p.asked[:min(len(p.asked), maxAsked)]
	s.pulls[p] = true
	return p
}

// End ends the pull.
func (p *Pull) End() {
	if p == nil {
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	delete(p.s.pulls, p)
}

// weight orders nodes in rendezvous hashing: the node with the largest weight gets the key.
func weight(key, node string) uint64 {
	sum := sha256.Sum256([]byte(key + "\n" + node))
	return binary.BigEndian.Uint64(sum[:])
}

// The pauses between two questions to all nodes while a blob waits.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// Next returns the node that a blob comes from, which is tried only once. It is nil if the registry
// is to be asked: then Claim it. While another node is about to fetch the blob, Next waits, within
// bounds. unpacked says whether an unpacked layer will do. The error is that of ctx.
func (p *Pull) Next(ctx context.Context, blob digest.Digest, unpacked bool) (*Source, error) {
	if p == nil || p.wants[blob] == nil {
		return nil, nil
	}
	for pause := firstPause; ; pause = min(pause*3/2, longestPause) {
		if err := p.refresh(ctx, pause); err != nil {
			return nil, err
		}
		src, winner := p.choose(blob, unpacked)
		if src != nil || winner == p.self {
			return src, nil
		}
		p.waitFor(blob, winner)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Claim says whether this node may ask the registry for a blob. If so it tells others that the blob
// is arriving here; Release ends that. If not, ask Next again.
func (p *Pull) Claim(ctx context.Context, blob digest.Digest, unpacked bool) (bool, error) {
	if p == nil || p.wants[blob] == nil {
		return true, nil
	}
	// It may have waited for its turn at the registry.
	if err := p.refresh(ctx, firstPause); err != nil {
		return false, err
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if src, winner := p.chooseLocked(blob, unpacked); src != nil || winner != p.self {
		return false, nil
	}
	p.wants[blob].claimed = true
	return true, nil
}

// Release ends a claim, or says that a blob has come from another node. Unless it is here, this
// node goes on wanting it.
func (p *Pull) Release(blob digest.Digest, here bool) {
	if p == nil {
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if w := p.wants[blob]; w != nil {
		w.claimed, w.done = false, here
	}
}

// waitFor notes that a blob waits for a node. A node that it has waited for long enough loses its
// turn.
func (p *Pull) waitFor(blob digest.Digest, winner string) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.wants[blob].wait(winner, time.Now(), p.s.patience)
}

// wait counts the time that a blob waits for a node, which is "" if all that have it are busy.
func (w *want) wait(winner string, now time.Time, patience time.Duration) {
	switch {
	case w.since.IsZero():
		w.since = now
	case now.Sub(w.since) > patience:
		w.passed[winner], w.since, w.turns = true, now, w.turns+1
	}
}

// refused notes that a node was too busy to send the blob. It is left alone for a while, longer
// each time. Without that, a node that refuses slowly would be asked forever, without a pause.
func (w *want) refused(n *node, now time.Time, patience time.Duration) {
	r := w.busy[n]
	pause := longestPause
	if r.times < 5 { // before firstPause<<times is more than that
		pause = firstPause << r.times
	}
	w.busy[n] = refusal{times: r.times + 1, until: now.Add(pause)}
	w.wait("", now, patience)
}

func (p *Pull) choose(blob digest.Digest, unpacked bool) (src *Source, winner string) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.chooseLocked(blob, unpacked)
}

// chooseLocked returns a node that a blob can be fetched from, or else the node whose turn it is to
// fetch it from the registry. It is "" if nodes that have it are busy.
func (p *Pull) chooseLocked(blob digest.Digest, unpacked bool) (src *Source, winner string) {
	w := p.wants[blob]
	if w.givenUp {
		return nil, p.self
	}
	n, busy := p.holderLocked(blob, w, unpacked)
	switch {
	case n != nil:
		return &Source{p: p, n: n, blob: blob, Unpacked: w.answers[n].isLayer()}, ""
	case w.turns >= maxTurns:
		return nil, p.self
	case busy:
		return nil, ""
	}
	return nil, p.turnLocked(blob, w)
}

// holderLocked returns the best node that has a blob; busy says that others have it which are busy.
// After maxTurns, a node that has refused it does not count.
func (p *Pull) holderLocked(blob digest.Digest, w *want, unpacked bool) (best *node, busy bool) {
	now := time.Now()
	for _, n := range p.asked {
		state := w.answers[n]
		if state <= Wanted || w.failed[n] || now.Before(n.avoid) || state.isLayer() && !unpacked {
			continue
		}
		switch {
		case w.busy[n].times > 0 && w.turns >= maxTurns:
		case now.Before(w.busy[n].until):
			busy = true
		case best == nil || state > w.answers[best],
			// Of several, each node takes another one.
			state == w.answers[best] && weight(blob.String()+p.self, n.Name) > weight(blob.String()+p.self, best.Name):
			best = n
		}
	}
	return best, busy
}

// turnLocked returns the name of the node whose turn it is to fetch a blob that none has.
func (p *Pull) turnLocked(blob digest.Digest, w *want) string {
	winner, now := p.self, time.Now()
	consider := func(name string) {
		n := p.s.byName[name]
		if n == nil || w.failed[n] || now.Before(n.avoid) {
			return // it would be waited for in vain: nothing is fetched from it
		}
		if !w.passed[name] && weight(blob.String(), name) > weight(blob.String(), winner) {
			winner = name
		}
	}
	for _, n := range p.asked {
		if w.answers[n] == Wanted {
			consider(n.Name)
		}
	}
	for name, said := range w.rivals {
		if now.Sub(said) < rivalFor {
			consider(name)
		}
	}
	return winner
}

// refresh asks the nodes, unless they were asked a moment ago. The error is that of ctx.
func (p *Pull) refresh(ctx context.Context, age time.Duration) error {
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	q, nodes := p.question(age)
	if len(nodes) == 0 {
		return ctx.Err()
	}
	for range askRounds {
		p.askAll(ctx, q, nodes)
		if nodes = p.found(); len(nodes) == 0 {
			break
		}
	}
	// From here on, or the calls that wait for p.asking would ask again, one after the other.
	p.s.mu.Lock()
	p.refreshed = time.Now()
	p.s.mu.Unlock()
	return ctx.Err()
}

// askAll asks nodes at the same time. Each round has the whole askLimit: a node that is asked after
// a slow one must not be left alone for that.
func (p *Pull) askAll(ctx context.Context, q question, nodes []*node) {
	limited, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			began := time.Now()
			a, err := p.s.ask(n, limited, q)
			if ctx.Err() == nil {
				p.noteAnswer(n, q, a, time.Since(began), err)
			}
		})
	}
	all.Wait()
}

// found returns nodes that were named in answers and have not been asked yet.
func (p *Pull) found() (nodes []*node) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, n := range p.asked {
		if p.rest[n].IsZero() && time.Now().After(n.avoid) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// question is what to ask whom now; no one if they were asked a moment ago.
func (p *Pull) question(age time.Duration) (q question, nodes []*node) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	now := time.Now()
	if now.Sub(p.refreshed) < age {
		return q, nil
	}
	q.Repository = p.repository
	for b, w := range p.wants {
		if w.done || len(q.Blobs) == maxBlobs {
			continue
		}
		if !w.claimed {
			q.Wanted = append(q.Wanted, len(q.Blobs))
		}
		q.Blobs = append(q.Blobs, b)
	}
	if len(q.Wanted) == 0 {
		return q, nil
	}
	for _, n := range p.asked {
		if now.After(n.avoid) && !now.Before(p.rest[n]) {
			nodes = append(nodes, n)
		}
	}
	return q, nodes
}

// A node is not asked again for restFactor times as long as its answer took, so that a slow node
// does not hold up each step of a pull. longestRest is less than rivalFor, so that a node is
// asked what it fetches before it stops counting as a rival.
const (
	restFactor  = 4
	longestRest = rivalFor / 2
)

// noteAnswer keeps what a node has said, or leaves it alone for a while.
func (p *Pull) noteAnswer(n *node, q question, a answer, took time.Duration, err error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if err != nil {
		if n.avoid.Before(time.Now()) {
			p.s.log.Info("other node cannot be asked for layers", "peer", n.Name, "err", err)
		}
		n.avoid = time.Now().Add(awayFor)
		return
	}
	p.rest[n] = time.Now().Add(min(restFactor*took, longestRest))
	for _, name := range a.Others[:min(len(a.Others), maxOthers)] {
		other := p.s.byName[name]
		if other != nil && len(p.asked) < maxAsked+maxFound && !slices.Contains(p.asked, other) {
			p.asked = append(p.asked, other)
		}
	}
	for i, b := range q.Blobs {
		p.wants[b].answers[n] = a.States[i]
	}
}
