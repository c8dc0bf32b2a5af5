package peer

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Swarm is this node among the others. Its methods may be called concurrently.
type Swarm struct {
	stock     Stock
	log       *slog.Logger
	downloads chan struct{} // holds one element for each that is under way
	uploads   *uploads

	setting sync.Mutex // held by Set and Close
	server  *server    // nil while there is no other node; guarded by setting
	closed  bool       // guarded by setting

	mu       sync.Mutex
	settings Settings
	nodes    []*node
	byName   map[string]*node // the same
	pulls    map[*Pull]bool
	sighted  sightings

	// ask is (*node).ask, but in simulations.
	ask func(*node, context.Context, question) (answer, error)
	// stall is how long a node may send nothing, or take nothing, and patience how long it may take
	// to begin with a blob that is its turn. Tests shorten them.
	stall, patience time.Duration
}

// New returns a Swarm that knows no other node yet.
func New(stock Stock, log *slog.Logger) *Swarm {
	return &Swarm{
		stock: stock, log: log, pulls: map[*Pull]bool{}, ask: (*node).ask, stall: stall, patience: patience,
		downloads: make(chan struct{}, maxDownloads), uploads: newUploads(),
	}
}

// Set says which nodes there are. While there are others, this one listens for them. On error it
// does not, and asks no other; Set may be called again. With the same nodes it only listens again
// if that has ended with an error.
func (s *Swarm) Set(f Settings) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	if s.closed {
		return nil
	}
	s.mu.Lock()
	same, old := f.equal(&s.settings), s.settings
	s.mu.Unlock()
	failed := s.server != nil && s.server.hasFailed()
	if same && !failed {
		return nil
	}
	if s.server != nil && (failed || len(f.Peers) == 0 || f.Listen != old.Listen || f.CA != old.CA || f.Serving != old.Serving) {
		s.stopServer()
	}
	if len(f.Peers) > 0 && s.server == nil {
		var err error
		if s.server, err = s.listen(f); err != nil {
			s.take(Settings{})
			return err
		}
	}
	s.take(f)
	return nil
}

// take makes f the nodes. What is known of those that stay is kept.
func (s *Swarm) take(f Settings) {
	s.mu.Lock()
	before := map[Node]*node{}
	if f.CA == s.settings.CA && f.Client == s.settings.Client {
		for _, n := range s.nodes {
			before[n.Node] = n
		}
	}
	gone := s.nodes
	s.nodes, s.byName, s.settings = nil, map[string]*node{}, f
	id := newIdentity(f)
	for _, n := range f.Peers {
		known := before[n]
		if known == nil {
			known = newNode(n, id, s.stall)
		}
		s.nodes = append(s.nodes, known)
		s.byName[n.Name] = known
	}
	s.mu.Unlock()
	for _, n := range gone {
		n.transport.CloseIdleConnections()
	}
}

// knows says whether a node is one of the others.
func (s *Swarm) knows(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[name] != nil
}

// Close ends serving and waits for that. Pulls under way go on at the registry.
func (s *Swarm) Close() {
	if s == nil {
		return
	}
	s.setting.Lock()
	defer s.setting.Unlock()
	s.closed = true
	if s.server != nil {
		s.stopServer()
	}
	s.take(Settings{})
}

func (s *Swarm) stopServer() {
	s.server.close()
	s.server = nil
}

// answerTo says what this node has of what another one asks for, and notes what that one wants. It
// is atomic with respect to Claim: of two nodes that want a blob, at least one learns of the other.
func (s *Swarm) answerTo(name string, q question, now time.Time) answer {
	a := answer{States: make([]State, len(q.Blobs))}
	for i, b := range q.Blobs {
		// Before the lock: a blob that comes into stock meanwhile was claimed before.
		a.States[i] = s.stock.State(q.Repository, b)
	}
	wanted := map[int]bool{}
	for _, i := range q.Wanted {
		wanted[i] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.nodes) > maxAsked { // with fewer, each asks all
		a.Others = s.sightLocked(name, q, now)
	}
	for p := range s.pulls {
		if p.repository != q.Repository {
			continue
		}
		for i, b := range q.Blobs {
			w := p.wants[b]
			switch {
			case w == nil:
			case w.claimed:
				a.States[i] = max(a.States[i], Arriving)
			case !w.done:
				a.States[i] = max(a.States[i], Wanted)
				if wanted[i] {
					w.rivals[name] = now
				}
			}
		}
	}
	return a
}

// sightLocked notes what a node asks for, and returns other nodes that have asked for the same.
func (s *Swarm) sightLocked(name string, q question, now time.Time) (others []string) {
	for _, b := range q.Blobs {
		for _, other := range s.sighted.note(q.Repository, b.String(), name, now) {
			if len(others) < maxOthers && !slices.Contains(others, other) {
				others = append(others, other)
			}
		}
	}
	return others
}
