// Package health is what the parts of a process say of themselves: whether what they promise is in
// force, since when, and what went wrong last. `coracle status` and `coracle doctor` show it.
//
// A part reports when something changes, so nothing is asked or polled:
//
//	part := board.Add("service proxy")         // it starts
//	part.Works("nftables table coracle-…")     // in force from now on
//	part.Fails(err)                            // not in force any more
//	part.Notes("the rules were repaired")      // in force, but something happened
package health

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"
)

// State is what one part says of itself.
type State struct {
	Component string `json:"component"`
	Healthy   bool   `json:"healthy"`
	// Since is when Healthy became what it is.
	Since   time.Time `json:"since"`
	Message string    `json:"message,omitempty"`
	// LastError is what went wrong last, which may be over; LastErrorAt is the zero time if nothing
	// has.
	LastError   string    `json:"lastError,omitempty"`
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`
	// Warnings are what an operator should know though the part is healthy.
	Warnings []string `json:"warnings,omitempty"`
}

// Count says how many there are of something, as in "1 node" and "2 nodes".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Board has the states of a process's parts. Its zero value is an empty one.
type Board struct {
	mu    sync.Mutex
	parts []*Part
	// heard is closed, and replaced, when a part says for the first time whether it works; nil while
	// no one waits for it.
	heard chan struct{}
}

// Part is one part's place on a Board. A nil Part may be told all, and keeps nothing: a part that
// runs alone has no Board.
type Part struct {
	board *Board
	state State
	said  bool // whether what it promises is in force
}

// Add gives a part its place, in the order in which they are shown.
func (b *Board) Add(component string) *Part {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &Part{board: b, state: State{Component: component, Since: time.Now(), Message: "it has not started yet"}}
	b.parts = append(b.parts, p)
	return p
}

// States returns what all parts say now.
func (b *Board) States() []State {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]State, 0, len(b.parts))
	for _, p := range b.parts {
		all = append(all, p.state)
	}
	return all
}

// Wait returns when each part has said that it works or that it fails, or ctx has ended.
func (b *Board) Wait(ctx context.Context) {
	for {
		heard := b.silent()
		if heard == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-heard:
		}
	}
}

// silent returns nil if each part has said so, or else what is closed when the next one does.
func (b *Board) silent() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.ContainsFunc(b.parts, func(p *Part) bool { return !p.said }) {
		return nil
	}
	if b.heard == nil {
		b.heard = make(chan struct{})
	}
	return b.heard
}

// Works says that what the part promises is in force, and what an operator should know all the
// same.
func (p *Part) Works(message string, warnings ...string) {
	p.change(true, func(s *State, now time.Time) {
		if !s.Healthy {
			s.Healthy, s.Since = true, now
		}
		s.Message, s.Warnings = message, warnings
	})
}

// Fails says that it is not, and why.
func (p *Part) Fails(err error) {
	p.change(true, func(s *State, now time.Time) {
		if s.Healthy {
			s.Healthy, s.Since = false, now
		}
		s.Message, s.LastError, s.LastErrorAt, s.Warnings = err.Error(), err.Error(), now, nil
	})
}

// Notes says what went wrong without an end to what is in force.
func (p *Part) Notes(what string) {
	p.change(false, func(s *State, now time.Time) { s.LastError, s.LastErrorAt = what, now })
}

// change changes the state; says is whether it says now if the part works.
func (p *Part) change(says bool, f func(s *State, now time.Time)) {
	if p == nil {
		return
	}
	p.board.mu.Lock()
	defer p.board.mu.Unlock()
	f(&p.state, time.Now())
	if p.said || !says {
		return
	}
	p.said = true
	if p.board.heard != nil {
		close(p.board.heard)
		p.board.heard = nil
	}
}
