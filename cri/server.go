package cri

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// maxMessage is the kubelet's own limit for one message, either way.
	maxMessage = 16 << 20
	// maxCalls bounds the calls under way on one connection. The kubelet has one
	// connection and a blocking StopContainer per dying container; more than this
	// wait their turn inside the client.
	maxCalls = 1024
	// minPing is how often a client may ping. A quicker one is cut off.
	minPing = 10 * time.Second
	// handshake is how long a connection may take to become HTTP/2.
	handshake = 10 * time.Second
)

// Server serves CRI on a listener of the caller's, and exec, attach and port
// forward streams on one of its own.
type Server struct {
	grpc   *grpc.Server
	stream *streamServer
	ending chan struct{}
	end    sync.Once // closes ending
}

// New makes a server. It does no I/O but to bind the stream address, which must be
// known before the first call.
func New(c Config, d Deps) (*Server, error) {
	stream, err := newStreamServer(c.StreamAddress, d.Pods, d.Log)
	if err != nil {
		return nil, err
	}
	o := observer{log: d.Log, worked: d.Worked, called: d.Called}
	g := grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.ConnectionTimeout(handshake),
		// A unix socket tells of a dead peer by itself: never ping, so that an
		// idle connection wakes no one.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Duration(math.MaxInt64)}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(o.unary),
		grpc.StreamInterceptor(o.streaming),
	}, d.Options...)...)
	ending := make(chan struct{})
	s := newService(c, d)
	s.stream, s.ending = stream, ending
	g.RegisterService(runtimeService(), s)
	runtimeapi.RegisterImageServiceServer(g, s)
	if d.Services != nil {
		d.Services(g)
	}
	return &Server{grpc: g, stream: stream, ending: ending}, nil
}

// Serve answers calls that arrive on l until Stop, then returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	streaming := make(chan error, 1)
	go func() { streaming <- s.stream.serve() }()
	err := s.grpc.Serve(l)
	s.stream.close()
	return errors.Join(err, <-streaming)
}

// Stop lets the calls under way end, but cuts them off when ctx ends; operations
// behind them go on. Streams are cut off at once. It may be called before Serve.
func (s *Server) Stop(ctx context.Context) {
	s.end.Do(func() { close(s.ending) })
	s.stream.close()
	cut := context.AfterFunc(ctx, s.grpc.Stop)
	defer cut()
	s.grpc.GracefulStop()
}
