// Package etcd runs an etcd server inside this process: the store of a cluster, or one member of it
// if there are several API servers.
//
// Its data is ROOT/etcd in etcd's own format, with the keys that upstream's kube-apiserver uses, so
// that etcd's tools and an upstream API server can take it over. The API server reaches it by
// function calls ([Server.Client]): no sockets, no gRPC framing. A unix socket is there too, for
// etcdctl and for the few places in upstream's code that insist on dialling.
//
// Old versions of objects are dropped by the API server, every five minutes. The file is written
// again when most of it is free, and when it has reached its quota, room is made at the first write
// that is refused (space.go).
//
// A member without peers is tuned for one node: no one has to catch up from its log, so little of
// it is kept in memory, and its clock is slow. A file makes it a member of several (peers.go). Its
// log goes to slog, warnings and worse only. What etcd would answer with a panic or by ending
// the process (a damaged log or database) is an error of [Start] here.
package etcd

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"

	"github.com/coracle-project/coracle/cluster/health"
)

const (
	// DefaultQuota is the size of the database above which etcd refuses writes.
	DefaultQuota = 4 << 30
	// startLimit bounds how long a start may take: replaying the log of a crashed server is the
	// slowest part and is bounded by snapshotEvery.
	startLimit = time.Minute
	// snapshotEvery is after how many writes the log is cut, and catchUp how many of them stay in
	// memory then; each may hold a whole object.
	snapshotEvery = 2000
	catchUp       = 100
	// tick is etcd's clock, and an election takes electionTicks of it (the fewest that etcd
	// allows). A member without peers needs neither, and [campaign] does not wait for them; an idle
	// process should wake seldom.
	tick          = time.Second
	electionTicks = 5
	// campaignEvery is how often a starting member tries to become its own leader.
	campaignEvery = 2 * time.Millisecond
	// Writes are in the log when they are answered. They are put into the database when so much
	// time has passed, or when there are so many of them. A read after a write copies the list of
	// those that are not there yet, 48 bytes for each, and so does each event of a watch.
	commitEvery = time.Second
	commitLimit = 250
	// maxSocketPath is the kernel's limit (sockaddr_un.sun_path), with its final zero.
	maxSocketPath = 107
)

// Options say where a server keeps its data.
type Options struct {
	// Dir has the data in its directory etcd, State the socket.
	Dir, State string
	// Quota is how many bytes the database may have, DefaultQuota if 0.
	Quota int64
	// Health is told whether writes are accepted; it may be nil.
	Health *health.Part
	// PeerCA and PeerPair are the files of the authority of the members' certificates, and of this
	// one's certificate and key. Only a member with peers needs them.
	PeerCA, PeerPair string
	// APICA is the file of the authority of the cluster's API servers, and APIPort where each of them
	// listens. A member that is to go on without the others asks them; without a port it does not.
	APICA   string
	APIPort int
	// MembersHealth is told how the other members are; it may be nil.
	MembersHealth *health.Part
	// Alone is called when a member with peers has been the only one for two minutes: a machine that
	// was about to join has not come back, or the program that removed the last other member was
	// killed. It has the server be started again without peers. It may be nil.
	Alone func() error
	// Log gets warnings and errors, also those of etcd itself; nil discards them.
	Log *slog.Logger

	// pause is between tries to make room, roomEvery if 0; for tests.
	pause time.Duration
	// alone is how long a member is the only one until Alone is called, aloneFor if 0; for tests.
	alone time.Duration
}

func (o *Options) quota() int64 {
	if o.Quota == 0 {
		return DefaultQuota
	}
	return o.Quota
}

// Server is a running etcd.
type Server struct {
	// Endpoint is where other processes, and upstream's code, can dial it.
	Endpoint string

	etcd    *member
	space   *space
	lock    *os.File
	journal *journal
	// peers is nil without peers. watch looks at them, and members asks them.
	peers   *Peers
	watch   *watch
	members caller
	dir     string
	// behind gets an error if the log ends before the database.
	behind chan error

	mu     sync.Mutex // held while compare reads the database
	closed bool
}

// Socket is where the server whose socket is in state can be dialled.
func Socket(state string) string { return filepath.Join(state, "etcd.sock") }

// Start starts etcd and waits until it serves. The caller closes it.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, state := filepath.Join(o.Dir, "etcd"), o.State
	socket := Socket(state)
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("the path of etcd's socket %s is %d bytes long, and a socket's can have %d; choose a shorter --state", socket,
			len(socket), maxSocketPath)
	}
	for _, d := range []string{dir, state} {
		// Also close a directory that was opened to others: the data has secrets, and the socket
		// does not authenticate its clients.
		if err := errors.Join(os.MkdirAll(d, 0o700), os.Chmod(d, 0o700)); err != nil {
			return nil, fmt.Errorf("cannot make a directory for etcd: %w", err)
		}
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(socket) // left by a process that was killed; the lock says that none lives
	s := &Server{Endpoint: "unix://" + socket, lock: lock, journal: newJournal(o.Log), behind: make(chan error, 1), dir: o.Dir}
	c, err := configured(dir, socket, o.quota())
	if err == nil {
		err = s.prepare(ctx, c, o)
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	var snapshots sync.RWMutex
	c.grpc = []grpc.ServerOption{grpc.ChainStreamInterceptor(sending(&snapshots))}
	c.Logger = s.journal.logger()
	if err = whole(dir); err == nil {
		s.etcd, err = startGuarded(c, s.journal)
	}
	if err != nil {
		_ = lock.Close()
		switch {
		case errors.Is(err, errListen):
			return nil, err
		case s.peers.joins(dir):
			return nil, s.peers.unreachable(err)
		}
		return nil, damaged(dir, s.peers, err)
	}
	starting, started := context.WithCancel(ctx)
	defer started()
	if s.peers == nil {
		go func() {
			campaign(s.etcd.Server)
			s.compare(starting)
		}()
	} else {
		s.watch = watchMembers(s, o)
	}
	if err := s.serves(ctx, dir); err != nil {
		return nil, err
	}
	if s.peers != nil {
		if err := s.takePart(ctx); err != nil {
			s.Close()
			return nil, err
		}
	}
	s.space = keepSpace(ctx, s.etcd.Server, dir, &snapshots, o)
	return s, nil
}

// prepare has c be what the server's Peers say, if it has some.
func (s *Server) prepare(ctx context.Context, c *settings, o Options) (err error) {
	if s.peers, err = ReadPeers(o.Dir); err != nil || s.peers == nil {
		return err
	}
	if err := s.peers.configure(c, o); err != nil {
		return err
	}
	if s.members, err = memberCaller(o.PeerCA, o.PeerPair, answerLimit); err != nil {
		return fmt.Errorf("etcd's certificate for its peers: %w", err)
	}
	if s.peers.Force {
		return s.peers.mayForce(ctx, o)
	}
	return nil
}

// serves returns when the server in dir serves. If that fails, the server is closed, unless closing
// would wait: for what a goroutine held that has ended, or for a log behind the database to catch
// up. Then the process is expected to end.
func (s *Server) serves(ctx context.Context, dir string) error {
	var err error
	late := time.After(startLimit)
	if s.removed() { // it would wait for the others for ever
		s.journal.started.Store(true)
		s.Close()
		return ErrRemoved
	}
	if s.peers != nil {
		late = nil // it waits for the other members
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		// Until the first commit etcd cannot tell which version its database has, and would warn.
		s.etcd.Server.KV().Commit()
		s.journal.started.Store(true)
		s.journal.running.Store(true)
		return nil
	case err = <-s.journal.died:
		return damaged(dir, s.peers, err)
	case err = <-s.behind:
		return damaged(dir, s.peers, err)
	case err = <-s.etcd.failed:
	case <-s.etcd.Server.StopNotify():
		err = errors.New("it stopped")
	case <-late:
		err = fmt.Errorf("it was not ready after %v", startLimit)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.journal.started.Store(true) // from here on no one asks why a goroutine ended
	s.Close()
	if s.removed() {
		return ErrRemoved
	}
	return fmt.Errorf("etcd in %s did not start: %w", dir, err)
}

// campaign makes the only member of a cluster its leader at once. By itself it would wait for the
// leader that it might have missed: one to ten ticks. The message is the one by which a leader
// hands over. It is sent when raft knows that its log has been applied: before, raft would look
// into the log for changes of the membership, and give up if etcd has cut off what it looks for.
// Also a server that is to stop goes on until then: etcd waits for a leader first.
func campaign(server *etcdserver.EtcdServer) {
	again := time.NewTicker(campaignEvery)
	defer again.Stop()
	self := uint64(server.MemberID())
	for server.Leader() == 0 {
		if applied() {
			if err := server.Process(context.Background(), raftpb.Message{Type: raftpb.MsgTimeoutNow, From: self, To: self}); err != nil {
				return // it has been stopped
			}
		}
		<-again.C
	}
}

// applied says whether raft knows that its log has been applied, up to what is committed. Without a
// leader no more becomes committed.
func applied() bool {
	status, ok := raftStatus()
	return ok && status.Applied >= status.Commit
}

// raftStatus is raft's state, which etcd publishes for debugging only. It is that of the server
// started last.
func raftStatus() (status raft.Status, ok bool) {
	v, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return raft.Status{}, false
	}
	status, ok = v.Value().(raft.Status)
	return status, ok
}

// configured returns the settings of an etcd with its data in dir that listens on socket.
func configured(dir, socket string, quota int64) (*settings, error) {
	c, err := newSettings()
	if err != nil {
		return nil, err
	}
	c.DataDir, c.socket = dir, socket
	c.QuotaBackendBytes = quota
	c.SnapshotCount = snapshotEvery
	c.SnapshotCatchUpEntries = catchUp
	c.TickMs, c.ElectionTicks = uint(tick.Milliseconds()), electionTicks
	c.BackendBatchInterval, c.BackendBatchLimit = commitEvery, commitLimit
	// Requests that take longer than this are logged; a busy disk of a small machine is no news.
	c.WarningApplyDuration = time.Second
	c.WarningUnaryRequestDuration = 2 * time.Second
	return c, nil
}

// Client returns a client that calls the server directly. Each one has a watch stream of its own;
// none uses a connection. Close it.
//
// It is etcd's v3client without what our caller has no use for: membership, users, and a wrapper
// around contexts that costs two goroutines a watch.
func (s *Server) Client() *clientv3.Client {
	server := s.etcd.Server
	c := clientv3.NewCtxClient(context.Background(), clientv3.WithZapLogger(server.Logger()))
	c.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(noticing{v3rpc.NewQuotaKVServer(server), s.space.noticeFull}), c)
	c.Lease = clientv3.NewLeaseFromLeaseClient(adapter.LeaseServerToLeaseClient(v3rpc.NewQuotaLeaseServer(server)), c, time.Second)
	c.Watcher = clientv3.NewWatchFromWatchClient(adapter.WatchServerToWatchClient(v3rpc.NewWatchServer(server)), c)
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(
		adapter.MaintenanceServerToMaintenanceClient(v3rpc.NewMaintenanceServer(server, nil)), c)
	return c
}

// Stopped is closed when the server has stopped, by Close or by a fatal error of its own.
func (s *Server) Stopped() <-chan struct{} { return s.etcd.Server.StopNotify() }

// Close stops the server, having written all that it acknowledged.
func (s *Server) Close() {
	s.journal.running.Store(false)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if s.watch != nil {
		s.watch.close()
	}
	if s.space != nil {
		s.space.close()
	}
	s.etcd.Close()
	_ = s.lock.Close()
}
