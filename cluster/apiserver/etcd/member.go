package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	// LoneName and LoneURL are the name and peer URL of a member without peers. etcd wants a URL with
	// a port; it is never dialled.
	LoneName = "default"
	LoneURL  = "http://localhost:2380"
	// peerCloseLimit is how long connections of other members may take to end.
	peerCloseLimit = time.Second
	// clientPingsEvery is how often a client may ask whether a connection is alive, at most.
	clientPingsEvery = 5 * time.Second
)

// member is an etcd server with its listeners. Package embed of etcd is not used: it links a web
// page for traces, whose templates keep the linker from leaving out methods that nothing calls,
// and a REST gateway (docs/decisions/program-size.md).
type member struct {
	Server *etcdserver.EtcdServer

	config  config.ServerConfig
	clients *grpc.Server
	peers   *http.Server
	// failed gets the error of a listener that ended by itself.
	failed chan error
}

// settings are what etcd is started with. The cluster's members are its InitialPeerURLsMap.
type settings struct {
	config.ServerConfig
	// socket is where clients are served.
	socket string
	// grpc are options of the server for clients.
	grpc []grpc.ServerOption
}

// newSettings returns etcd's own defaults, for one member without peers.
func newSettings() (*settings, error) {
	c := config.ServerConfig{
		Name:                   LoneName,
		SnapshotCount:          etcdserver.DefaultSnapshotCount,
		SnapshotCatchUpEntries: etcdserver.DefaultSnapshotCatchUpEntries,
		MaxSnapFiles:           5,
		MaxWALFiles:            5,
		BackendFreelistType:    bbolt.FreelistMapType,
		InitialClusterToken:    "etcd-cluster",
		NewCluster:             true,
		TickMs:                 100,
		ElectionTicks:          10,
		// A member that starts among others counts on hearing of their leader at once.
		InitialElectionTickAdvance: true,
		MaxTxnOps:                  128,
		MaxRequestBytes:            1.5 * 1024 * 1024,
		MaxConcurrentStreams:       1<<32 - 1,
		StrictReconfigCheck:        true,
		AuthToken:                  "simple",
		BcryptCost:                 10,
		TokenTTL:                   300,
		CompactHashCheckTime:       time.Minute,
		PreVote:                    true,
		DowngradeCheckTime:         5 * time.Second,
		MaxLearners:                membership.DefaultMaxLearners,
		V2Deprecation:              config.V2DeprDefault,
		Metrics:                    "basic",
	}
	var err error
	if c.PeerURLs, err = types.NewURLs([]string{LoneURL}); err != nil {
		return nil, err
	}
	if c.ClientURLs, err = types.NewURLs([]string{"http://localhost:2379"}); err != nil {
		return nil, err
	}
	c.InitialPeerURLsMap = types.URLsMap{c.Name: c.PeerURLs}
	return &settings{ServerConfig: c}, nil
}

// errListen is for what is wrong with the addresses and certificates of etcd's listeners, not with
// its data.
var errListen = errors.New("etcd cannot listen")

// startMember starts etcd and its listeners. It does not wait until the member serves.
func startMember(s *settings) (m *member, err error) {
	m = &member{config: s.ServerConfig, failed: make(chan error, 2)}
	m.config.ServerFeatureGate = features.NewDefaultServerFeatureGate(m.config.Name, m.config.Logger)
	if wal.Exist(m.config.WALDir()) {
		m.config.InitialPeerURLsMap = nil // its log has the members
	}
	clients, err := net.Listen("unix", s.socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errListen, err)
	}
	var peers *peerPort
	var secured net.Listener
	defer func() {
		if err != nil {
			err = errors.Join(err, clients.Close())
			if peers != nil {
				err = errors.Join(err, peers.Close())
			}
		}
	}()
	if !m.config.PeerTLSInfo.Empty() {
		var peerTLS *tls.Config
		if peers, peerTLS, err = listenPeers(m.config.PeerURLs[0].Host, &m.config.PeerTLSInfo, m.config.Logger); err != nil {
			return nil, fmt.Errorf("%w for its other members at %s: %w", errListen, &m.config.PeerURLs[0], err)
		}
		secured = tls.NewListener(peers, peerTLS)
	}
	if m.Server, err = etcdserver.NewServer(m.config); err != nil {
		return nil, err
	}
	m.Server.Start()
	if peers != nil {
		m.peers = peers.server(etcdhttp.NewPeerHandler(m.config.Logger, m.Server))
		go m.serve(func() error { return m.peers.Serve(secured) })
	}
	m.clients = v3rpc.Server(m.Server, nil, nil, append([]grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: clientPingsEvery}),
	}, s.grpc...)...)
	go m.serveClients(clients)
	return m, nil
}

// serveClients accepts clients once the member is ready.
func (m *member) serveClients(l net.Listener) {
	select {
	case <-m.Server.ReadyNotify():
		m.serve(func() error { return m.clients.Serve(l) })
	case <-m.Server.StoppingNotify():
		_ = l.Close()
	}
}

func (m *member) serve(listener func() error) {
	if err := listener(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
		m.config.Logger.Error("a listener ended", zap.Error(err)) // later than the start no one reads failed
		m.failed <- err
	}
}

// Close ends the member, having written all that it acknowledged. Clients get the time that etcd
// gives a request.
func (m *member) Close() {
	if m.clients != nil {
		end := time.AfterFunc(m.config.ReqTimeout(), m.clients.Stop)
		m.clients.GracefulStop()
		end.Stop()
	}
	m.Server.Stop()
	if m.peers != nil {
		ctx, cancel := context.WithTimeout(context.Background(), peerCloseLimit)
		defer cancel()
		if m.peers.Shutdown(ctx) != nil {
			_ = m.peers.Close()
		}
	}
}
