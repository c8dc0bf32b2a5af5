package etcd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"

	"github.com/coracle-project/coracle/cluster/pki"
)

const (
	// peerTick is the clock of a member with peers. An election starts after 5 to 10 of them.
	peerTick      = 100 * time.Millisecond
	peerElection  = 5 * peerTick
	peerSnapshots = 10000
	peerCatchUp   = 5000
	// promoteEvery is how often a learner asks to become a voter.
	promoteEvery = 100 * time.Millisecond
	// healthSlack is how much longer than etcd demands a member may need to be seen as healthy.
	healthSlack  = 2 * time.Second
	peersVersion = 1
)

// Peers makes a server a member of a cluster of several. It is kept in ROOT/etcd/peers.json: with
// the file the server has a port for its peers and a fast clock, without it neither.
type Peers struct {
	Version int `json:"version"`
	// Name is the member's name, its node's. URL is where the other members reach it.
	Name string `json:"name"`
	URL  string `json:"url"`
	// Cluster are the URLs of all members by name, for the first start of a member that was added
	// to a cluster; nil for the cluster's first member.
	Cluster map[string]string `json:"cluster,omitempty"`
	// Force has the next start drop all other members, which are gone for good. It is done once.
	Force bool `json:"force,omitempty"`
}

// PeersFile is where the server with its data in dir keeps its Peers.
func PeersFile(dir string) string { return filepath.Join(dir, "etcd", "peers.json") }

// ReadPeers returns nil for a server without peers.
func ReadPeers(dir string) (*Peers, error) {
	data, err := os.ReadFile(PeersFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // it is no error
	}
	p := &Peers{}
	if err == nil {
		err = json.Unmarshal(data, p)
	}
	if err == nil && p.Version != peersVersion {
		err = fmt.Errorf("it has version %d, and this release reads version %d", p.Version, peersVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("read etcd's peers in %s: %w", PeersFile(dir), err)
	}
	return p, nil
}

// Write has the next server with its data in dir be this member.
func (p Peers) Write(dir string) error {
	p.Version = peersVersion
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(PeersFile(dir)), 0o700); err != nil {
		return err
	}
	return pki.Replace(PeersFile(dir), append(data, '\n'), 0o600)
}

// Move has the member, with its data in dir, be reached at another URL from its next start on,
// which tells the others. One that was never started stays at the URL that they know.
func (p *Peers) Move(dir, to string) error {
	if p.URL == to || p.joins(filepath.Join(dir, "etcd")) {
		return nil
	}
	p.URL = to
	return p.Write(dir)
}

// configure makes a member of c. Members show each other certificates of an authority that signs
// nothing else.
func (p *Peers) configure(c *settings, o Options) error {
	own, err := url.Parse(p.URL)
	if err != nil || own.Scheme != "https" || own.Port() == "" {
		return fmt.Errorf("etcd's URL for peers %q is not https://ADDRESS:PORT", p.URL)
	}
	if o.PeerCA == "" || o.PeerPair == "" {
		return errors.New("etcd has peers, and no certificate to show them")
	}
	c.Name = p.Name
	c.PeerURLs = types.URLs{*own}
	c.PeerTLSInfo = transport.TLSInfo{
		CertFile: o.PeerPair, KeyFile: o.PeerPair, TrustedCAFile: o.PeerCA, ClientCertAuth: true,
		MinVersion:          tls.VersionTLS13,
		SkipClientSANVerify: true, // the authority signs members only, and they may have several addresses
	}
	c.ForceNewCluster = p.Force
	c.InitialPeerURLsMap = types.URLsMap{p.Name: c.PeerURLs}
	if p.Cluster != nil {
		c.NewCluster = false
		for name, at := range p.Cluster {
			if c.InitialPeerURLsMap[name], err = types.NewURLs([]string{at}); err != nil {
				return fmt.Errorf("the URL of etcd's member %s: %w", name, err)
			}
		}
	}
	c.SnapshotCount, c.SnapshotCatchUpEntries = peerSnapshots, peerCatchUp
	c.TickMs, c.ElectionTicks = uint(peerTick.Milliseconds()), int(peerElection/peerTick)
	return nil
}

// joins says whether the member, with its data in dir, has not been started with success yet: it
// asks the others about the cluster then.
func (p *Peers) joins(dir string) bool {
	if p == nil || p.Cluster == nil {
		return false
	}
	_, err := os.Stat(filepath.Join(dir, "member", "wal"))
	return errors.Is(err, fs.ErrNotExist)
}

// unreachable is the error of a first start among others.
func (p *Peers) unreachable(err error) error {
	var others []string
	for name, at := range p.Cluster {
		if name != p.Name {
			others = append(others, name+" at "+at)
		}
	}
	slices.Sort(others)
	return fmt.Errorf("etcd cannot start as a member next to %s: %w; is the port open between the machines, and do those members run?",
		strings.Join(others, ", "), err)
}

// takePart makes a server that serves a full member: its URL is known to the others, and it votes.
func (s *Server) takePart(ctx context.Context) error {
	server := s.etcd.Server
	if s.peers.Force { // the next start is that of a lone member, and does not force anything
		if err := os.Remove(PeersFile(s.dir)); err != nil {
			return err
		}
	}
	self := server.Cluster().Member(server.MemberID())
	if self != nil && !slices.Equal(self.PeerURLs, []string{s.peers.URL}) {
		changed := membership.Member{ID: self.ID}
		changed.PeerURLs, changed.IsLearner = []string{s.peers.URL}, self.IsLearner
		if _, err := server.UpdateMember(ctx, changed); err != nil {
			return fmt.Errorf("tell etcd's members the URL %s: %w", s.peers.URL, err)
		}
	}
	for {
		// Not by IsLearner, which panics in a member that has applied its own removal.
		self := server.Cluster().Member(server.MemberID())
		if self != nil && !self.IsLearner {
			return nil
		}
		if self == nil && s.removed() {
			return ErrRemoved
		}
		_, err := server.PromoteMember(ctx, uint64(server.MemberID()))
		if errors.Is(err, membership.ErrIDNotFound) {
			return ErrRemoved
		}
		select { // it has not caught up, or has not seen its vote yet, or there is no quorum: the watch of the members tells
		case <-time.After(promoteEvery):
		case <-server.StopNotify():
			return s.End()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Member is one of the servers that keep the cluster's data.
type Member struct {
	Name string `json:"name"`
	URL  string `json:"url"`
	// Learner is whether it has no vote yet, Leader whether it leads.
	Learner bool `json:"learner,omitempty"`
	Leader  bool `json:"leader,omitempty"`
	id      types.ID
}

// Led is whether this member knows a leader.
func (s *Server) Led() bool { return s.etcd.Server.Leader() != 0 }

// Members returns all members by name.
func (s *Server) Members() []Member {
	server := s.etcd.Server
	var all []Member
	for _, m := range server.Cluster().Members() {
		one := Member{Name: m.Name, Learner: m.IsLearner, Leader: m.ID == server.Leader(), id: m.ID}
		if len(m.PeerURLs) > 0 {
			one.URL = m.PeerURLs[0]
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Member) int { return strings.Compare(a.Name+a.URL, b.Name+b.URL) })
	return all
}

// Errors of Add and Remove.
var (
	ErrAlone       = errors.New("etcd has no port for peers yet")
	ErrMemberTaken = errors.New("a member of that name exists")
	ErrNoMember    = errors.New("no member has that name")
	ErrLastMember  = errors.New("it is the only member")
)

// Add adds a learner, and returns what it has to be started with. A learner becomes a full member
// by itself when it has caught up. Adding it again is no error until it has been started.
func (s *Server) Add(ctx context.Context, name, peerURL string) (Peers, error) {
	if s.peers == nil {
		return Peers{}, ErrAlone
	}
	u, err := types.NewURLs([]string{peerURL})
	if err != nil || u[0].Scheme != "https" {
		return Peers{}, fmt.Errorf("%q is no URL of a member, such as https://10.0.0.2:2380", peerURL)
	}
	if ip, err := netip.ParseAddr(u[0].Hostname()); err == nil && ip.IsUnspecified() { // it could never catch up
		return Peers{}, fmt.Errorf("%s names no machine: give the address that other members reach", peerURL)
	}
	s.watch.joins.RLock()
	defer s.watch.joins.RUnlock()
	added := Peers{Version: peersVersion, Name: name, URL: u[0].String(), Cluster: map[string]string{}}
	there := false
	for _, m := range s.Members() {
		switch {
		case m.URL == added.URL && m.Learner && m.Name == "": // it was added, and never started
			there = true
			continue
		case m.Name == name:
			return Peers{}, fmt.Errorf("%w: %s at %s; 'coracle node remove %[2]s' removes it if that machine is gone", ErrMemberTaken, name, m.URL)
		case m.URL == added.URL:
			return Peers{}, fmt.Errorf("%w: %s at %s", ErrMemberTaken, m.Name, m.URL)
		case m.Name == "":
			return Peers{}, fmt.Errorf("the machine at %s is joining: try again when it has, or 'coracle node remove %[1]s' if it is gone", m.URL)
		}
		added.Cluster[m.Name] = m.URL
	}
	added.Cluster[name] = added.URL
	own := Peers{Name: s.peers.Name, URL: s.peers.URL, Cluster: s.peers.Cluster}
	if err := own.Write(s.dir); err != nil { // it has none if it was forced to go on alone
		return Peers{}, err
	}
	if there {
		return added, nil
	}
	now := time.Now()
	learner := *membership.NewMemberAsLearner("", u, "", &now)
	return added, retried(ctx, func() error {
		_, err := s.etcd.Server.AddMember(ctx, learner)
		return err
	})
}

// retried makes a change that etcd refuses until all voters have been connected for HealthInterval,
// which those that started just now have not.
func retried(ctx context.Context, change func() error) error {
	began := time.Now()
	for {
		err := change()
		if !errors.Is(err, etcderrors.ErrUnhealthy) || time.Since(began) > etcdserver.HealthInterval+healthSlack {
			return explained(err)
		}
		select {
		case <-time.After(promoteEvery):
		case <-ctx.Done():
			return explained(err)
		}
	}
}

// Remove removes the member of a name, or at a URL if it never started.
func (s *Server) Remove(ctx context.Context, name string) error {
	all := s.Members()
	i := slices.IndexFunc(all, func(m Member) bool { return m.Name == name || m.Name == "" && m.URL == name })
	if i < 0 {
		return fmt.Errorf("%w: %s", ErrNoMember, name)
	}
	if len(all) == 1 {
		return fmt.Errorf("remove %s: %w", name, ErrLastMember)
	}
	return retried(ctx, func() error {
		_, err := s.etcd.Server.RemoveMember(ctx, uint64(all[i].id))
		return err
	})
}

// Last is whether the server has peers no more, though it was started with some.
func (s *Server) Last() bool {
	all := s.Members()
	return s.peers != nil && len(all) == 1 && all[0].id == s.etcd.Server.MemberID()
}

// explained says what to do about the errors of changes of the membership.
func explained(err error) error {
	switch {
	case errors.Is(err, etcderrors.ErrUnhealthy), errors.Is(err, etcderrors.ErrNotEnoughStartedMembers):
		return fmt.Errorf("not all members answer, and another change could cost the quorum: 'coracle status' names those that do not: %w", err)
	case errors.Is(err, membership.ErrTooManyLearners):
		return fmt.Errorf("another machine is joining: try again when it has: %w", err)
	case errors.Is(err, etcderrors.ErrNoLeader), errors.Is(err, etcderrors.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("there is no quorum: 'coracle status' says what to do: %w", err)
	}
	return err
}
