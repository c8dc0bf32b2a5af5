package etcd

import "errors"

// ErrRemoved is the end of a member that was taken out of the cluster, while it ran or before its
// start. It cannot be started again: the others do not talk to it any more.
var ErrRemoved = errors.New("this machine's member of etcd was removed from the cluster: 'coracle leave --force' removes what the machine has " +
	"kept of the cluster, and then it can join again")

// toldRemoved is what etcd logs when another member tells it that it was removed. The error itself
// is not exported.
const toldRemoved = "data-dir used by this member must be removed"

// End is why a server stopped that was not closed.
func (s *Server) End() error {
	if s.removed() {
		return ErrRemoved
	}
	return errors.New("etcd has stopped")
}

// removed is whether this member was taken out of the cluster: it has applied that itself, or was
// told so by another one.
func (s *Server) removed() bool {
	if s.peers == nil {
		return false
	}
	server := s.etcd.Server
	return s.journal.removed.Load() || server.IsIDRemoved(uint64(server.MemberID()))
}
