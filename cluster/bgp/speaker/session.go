package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/coracle-project/coracle/cluster/health"
)

// session is how the session with a peer is.
type session struct {
	Peer
	as   uint32 // the node's
	log  *slog.Logger
	part *health.Part

	mu    sync.Mutex
	said  string // what was logged last
	later bool   // it will be enabled later
}

func newSession(p Peer, o Options) *session {
	return &session{Peer: p, as: o.AS, log: o.Log.With("peer", p.Address), part: o.Board.Add("BGP peer " + p.Address.String())}
}

func (s *session) up() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = ""
	s.part.Works(fmt.Sprintf("established with AS %d", s.AS))
	s.log.Info("the session is established")
}

// down is for what went wrong, which is logged once until something else is.
func (s *session) down(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == s.said {
		return
	}
	s.said = why
	s.part.Fails(errors.New(why))
	s.log.Warn("no session with the peer", "err", why)
}

// changed follows what GoBGP says of a peer.
func (s *Speaker) changed(e *apiutil.WatchEventMessage_PeerEvent) {
	peer := s.peers[e.Peer.State.NeighborAddress]
	if peer == nil || e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	state := e.Peer.State
	switch {
	case state.SessionState == bgp.BGP_FSM_ESTABLISHED:
		peer.up()
	case state.AdminState == api.PeerState_ADMIN_STATE_PFX_CT:
		peer.down(fmt.Sprintf("it sends more than %d routes of one family: filter them there; the next attempt is in %s", mostReceived, overflowPause))
		s.enableLater(peer)
	default:
		if why := peer.reason(state.DisconnectReason, state.DisconnectMessage); why != "" {
			peer.down(why)
		}
	}
}

// enableLater lets a peer that has sent too much try again. GoBGP tells more than once that it has.
func (s *Speaker) enableLater(peer *session) {
	peer.mu.Lock()
	waits := peer.later
	peer.later = true
	peer.mu.Unlock()
	if waits {
		return
	}
	s.work.Go(func() {
		select {
		case <-time.After(overflowPause):
			peer.mu.Lock()
			peer.later = false
			peer.mu.Unlock()
			err := s.server.EnablePeer(context.Background(), &api.EnablePeerRequest{Address: peer.Address.String()})
			if err != nil {
				s.Log.Error("the peer cannot be tried again", "peer", peer.Address, "err", err)
			}
		case <-s.ending:
		}
	})
}

// reason is what an operator should know about the end of a session, "" for nothing.
func (s *session) reason(kind api.PeerState_DisconnectReason, message string) string {
	switch kind {
	case api.PeerState_DISCONNECT_REASON_BAD_PEER_AS:
		return s.otherAS()
	case api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED:
		if strings.Contains(message, "bad peer as") {
			return fmt.Sprintf("it refuses this node's AS %d: correct --bgp-as, or the AS that the peer expects of this node", s.as)
		}
		return "it has ended the session: " + strings.TrimPrefix(message, "notification-received ")
	case api.PeerState_DISCONNECT_REASON_NOTIFICATION_SENT:
		return "this node has ended the session: " + strings.TrimPrefix(message, "notification-sent ")
	case api.PeerState_DISCONNECT_REASON_INVALID_MSG: // GoBGP does not tell which message it was
		return s.refused()
	case api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED:
		return fmt.Sprintf("nothing was heard from it for %s", holdTime)
	case api.PeerState_DISCONNECT_REASON_READ_FAILED, api.PeerState_DISCONNECT_REASON_WRITE_FAILED,
		api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART:
		return "it has closed the connection: it may be restarting, or may not know this node"
	}
	return ""
}

// unreachable is what an operator should know about a connection that could not be made.
func (s *session) unreachable(cause string) string {
	at := netip.AddrPortFrom(s.Address, s.Port).String()
	switch {
	case strings.Contains(cause, "connection refused"):
		return fmt.Sprintf("nothing listens at %s: start the router, or correct port=", at)
	case strings.Contains(cause, "timeout") && s.password != "":
		return fmt.Sprintf("%s does not answer: it cannot be reached, or its password for this node is not that of %s", at, s.PasswordFile)
	case strings.Contains(cause, "timeout"):
		return fmt.Sprintf("%s does not answer: it cannot be reached, or expects a password (password-file=)", at)
	}
	return fmt.Sprintf("connect to %s:%s", at, cause[strings.LastIndex(cause, ": ")+1:])
}

func (s *session) otherAS() string {
	return fmt.Sprintf("its AS is not %d: correct as= of this peer, or the peer", s.AS)
}

// refused is for a peer that ends a session before it is established.
func (s *session) refused() string {
	return fmt.Sprintf("it refuses the session: it may expect another AS of this node than %d (--bgp-as)", s.as)
}

// rejected is what an operator should know about a session that this node has ended with a
// notification before it was established, "" for nothing.
func (s *session) rejected(code, subcode uint8) string {
	switch {
	case code == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && subcode == bgp.BGP_ERROR_SUB_BAD_PEER_AS:
		return s.otherAS()
	case code == bgp.BGP_ERROR_FSM_ERROR:
		return s.refused()
	case code == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR:
		return "this node refuses the session: " + bgp.NewNotificationErrorCode(code, subcode).String()
	}
	return ""
}

// What GoBGP logs of a connection that it makes, and tells in no other way.
const (
	connectFailed    = "failed to connect"
	notificationSent = "sent notification"
)

// heard follows what GoBGP logs of a peer.
func (s *Speaker) heard(address string, r slog.Record) {
	a, err := netip.ParseAddr(address)
	peer := s.peers[a]
	if err != nil || peer == nil {
		return
	}
	if r.Message != connectFailed && r.Message != notificationSent {
		return
	}
	attrs := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value
		return true
	})
	why := ""
	switch r.Message {
	case connectFailed:
		why = peer.unreachable(attrs["Error"].String())
	case notificationSent:
		if code, sub := attrs["Code"], attrs["Subcode"]; code.Kind() == slog.KindInt64 && sub.Kind() == slog.KindInt64 {
			why = peer.rejected(uint8(code.Int64()), uint8(sub.Int64()))
		}
	}
	if why != "" {
		peer.down(why)
	}
}

// listener passes on what GoBGP logs as a warning or worse, and has the rest looked at.
type listener struct {
	next  slog.Handler
	peer  string // its address, the attribute "Key"
	heard func(peer string, r slog.Record)
}

// Enabled implements slog.Handler, as do the others.
func (l listener) Enabled(context.Context, slog.Level) bool { return true }

func (l listener) Handle(ctx context.Context, r slog.Record) error {
	if l.peer != "" {
		l.heard(l.peer, r)
	}
	if r.Level < slog.LevelWarn || !l.next.Enabled(ctx, r.Level) {
		return nil
	}
	return l.next.Handle(ctx, r)
}

func (l listener) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == "Key" {
			l.peer = a.Value.String()
		}
	}
	l.next = l.next.WithAttrs(attrs)
	return l
}

func (l listener) WithGroup(name string) slog.Handler {
	l.next = l.next.WithGroup(name)
	return l
}
