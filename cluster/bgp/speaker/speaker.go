// Package speaker announces routes to BGP routers, with GoBGP. It connects to its peers and listens
// on no port. It passes on nothing of what peers announce, and installs none of it.
//
// Graceful restart (RFC 4724): a peer keeps the routes when the process is killed, and the next one
// says that forwarding went on, as the kernel does it.
package speaker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/coracle-project/coracle/cluster/bgp/routes"
	"github.com/coracle-project/coracle/cluster/health"
)

const (
	// holdTime is how long a silent peer is believed to be there: the time after which a peer drops
	// the routes of a machine that is off.
	holdTime = 30 * time.Second
	// restartTime is how long a peer keeps the routes of a process that was killed. An upgrade has
	// to fit in.
	restartTime = 120 * time.Second
	// deferral is how long a process that was started again waits for routes of its peers, which it
	// does not need, before it announces its own.
	deferral = time.Second
	// retry is the pause between attempts to connect.
	retry = 5 * time.Second
	// mostReceived is how many routes of each family a peer may send. They take memory, though
	// nothing uses them.
	mostReceived = 10_000
	// overflowPause is how long a peer that sends more is left alone.
	overflowPause = 5 * time.Minute
)

// Options are this AS and its peers.
type Options struct {
	AS    uint32
	Peers []Peer
	Log   *slog.Logger
	// Board gets a part for each peer.
	Board *health.Board
}

// Speaker is the node's side of the sessions with all peers.
type Speaker struct {
	Options
	server *server.BgpServer
	peers  map[netip.Addr]*session
	ending chan struct{}
	work   sync.WaitGroup
	// announced is what Set has announced last.
	announced map[netip.Prefix]netip.Addr
}

// New connects to no one yet.
func New(o Options) *Speaker {
	s := &Speaker{Options: o, peers: map[netip.Addr]*session{}, ending: make(chan struct{}), announced: map[netip.Prefix]netip.Addr{}}
	for _, p := range o.Peers {
		s.peers[p.Address] = newSession(p, o)
	}
	s.server = server.NewBgpServer(server.LoggerOption(slog.New(listener{next: o.Log.Handler(), heard: s.heard}), nil))
	return s
}

// Start announces routes to all peers, as soon as they can be reached. It needs a next hop.
func (s *Speaker) Start(ctx context.Context, r routes.Routes) error {
	go s.server.Serve()
	id, err := routerID(r)
	if err != nil {
		return err
	}
	err = s.server.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: s.AS, RouterId: id.String(), ListenPort: -1}})
	if err != nil {
		return fmt.Errorf("start BGP: %w", err)
	}
	if err := s.acceptOnlyOwn(ctx); err != nil {
		return fmt.Errorf("set the policy for received routes: %w", err)
	}
	callbacks := server.WatchEventMessageCallbacks{OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) { s.changed(e) }}
	if err := s.server.WatchEvent(context.WithoutCancel(ctx), callbacks, server.WatchPeer()); err != nil {
		return fmt.Errorf("watch peers: %w", err)
	}
	if err := s.Set(r); err != nil {
		return err
	}
	for _, p := range s.Peers {
		if err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: s.peer(p)}); err != nil {
			return fmt.Errorf("peer %s: %w", p.Address, err)
		}
	}
	return nil
}

// Set announces these routes instead of those before. It is not for concurrent use.
func (s *Speaker) Set(r routes.Routes) error {
	next := map[netip.Prefix]netip.Addr{}
	var add, gone []*apiutil.Path
	for _, p := range r.Prefixes {
		next[p] = r.NextHop(p.Addr())
		if s.announced[p] != next[p] {
			path, err := newPath(p, next[p])
			if err != nil {
				return fmt.Errorf("route %s: %w", p, err)
			}
			add = append(add, path)
		}
	}
	for p, hop := range s.announced {
		if _, ok := next[p]; ok {
			continue
		}
		path, err := newPath(p, hop)
		if err != nil {
			return fmt.Errorf("route %s: %w", p, err)
		}
		gone = append(gone, path)
	}
	if len(add) > 0 {
		if _, err := s.server.AddPath(apiutil.AddPathRequest{Paths: add}); err != nil {
			return fmt.Errorf("announce: %w", err)
		}
	}
	if len(gone) > 0 {
		if err := s.server.DeletePath(apiutil.DeletePathRequest{Paths: gone}); err != nil {
			return fmt.Errorf("withdraw: %w", err)
		}
	}
	if len(add)+len(gone) > 0 {
		s.Log.Info("routes have changed", "announced", len(next), "added", len(add), "withdrawn", len(gone))
	}
	s.announced = next
	return nil
}

// Ending says how a Speaker stops.
type Ending int

const (
	// Withdraw ends the sessions, and peers drop the routes.
	Withdraw Ending = iota
	// Keep ends the connections only, and peers keep the routes for restartTime.
	Keep
)

// Stop ends all sessions.
func (s *Speaker) Stop(how Ending) error {
	close(s.ending)
	s.work.Wait()
	return s.server.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: how == Keep})
}

// acceptOnlyOwn keeps what peers announce out of the table, and with it from other peers.
func (s *Speaker) acceptOnlyOwn(ctx context.Context) error {
	policy := &api.Policy{Name: "own-routes", Statements: []*api.Statement{{
		Name:       "own-routes",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := s.server.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy}); err != nil {
		return err
	}
	for _, direction := range []api.PolicyDirection{api.PolicyDirection_POLICY_DIRECTION_IMPORT, api.PolicyDirection_POLICY_DIRECTION_EXPORT} {
		err := s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Name: "global", Direction: direction, Policies: []*api.Policy{policy}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Speaker) peer(p Peer) *api.Peer {
	seconds := func(d time.Duration) uint64 { return uint64(d / time.Second) }
	peer := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: p.Address.String(), PeerAsn: p.AS, LocalAsn: s.AS, AuthPassword: p.password},
		Transport: &api.Transport{RemotePort: uint32(p.Port)},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry: seconds(retry), IdleHoldTimeAfterReset: seconds(retry), HoldTime: seconds(holdTime),
			KeepaliveInterval: seconds(holdTime / 3),
		}},
		// A process that starts does not know whether it is the first. That forwarding went on is true
		// either way.
		GracefulRestart: &api.GracefulRestart{
			Enabled: true, LocalRestarting: true, RestartTime: uint32(seconds(restartTime)), DeferralTime: uint32(seconds(deferral)),
		},
	}
	for _, afi := range []api.Family_Afi{api.Family_AFI_IP, api.Family_AFI_IP6} {
		family := &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}
		peer.AfiSafis = append(peer.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
			PrefixLimits:      &api.PrefixLimit{Family: family, MaxPrefixes: mostReceived},
		})
	}
	return peer
}

func newPath(p netip.Prefix, hop netip.Addr) (*apiutil.Path, error) {
	nlri, err := bgp.NewIPAddrPrefix(p)
	if err != nil {
		return nil, err
	}
	origin := bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)
	if p.Addr().Is4() {
		next, err := bgp.NewPathAttributeNextHop(hop)
		if err != nil {
			return nil, err
		}
		return &apiutil.Path{Family: bgp.RF_IPv4_UC, Nlri: nlri, Attrs: []bgp.PathAttributeInterface{origin, next}}, nil
	}
	next, err := bgp.NewPathAttributeMpReachNLRI(bgp.RF_IPv6_UC, []bgp.PathNLRI{{NLRI: nlri}}, hop)
	if err != nil {
		return nil, err
	}
	return &apiutil.Path{Family: bgp.RF_IPv6_UC, Nlri: nlri, Attrs: []bgp.PathAttributeInterface{origin, next}}, nil
}

// routerID is the node's IPv4 address, or a number made from its IPv6 address.
func routerID(r routes.Routes) (netip.Addr, error) {
	if hop := r.NextHop(netip.IPv4Unspecified()); hop.IsValid() {
		return hop, nil
	}
	hop := r.NextHop(netip.IPv6Unspecified())
	if !hop.IsValid() {
		return netip.Addr{}, errors.New("the node has no address that routes could lead to")
	}
	sum := sha256.Sum256(hop.AsSlice())
	return netip.AddrFrom4([4]byte{10, sum[0], sum[1], sum[2]}), nil
}
