// Package cri is the kubelet's way to the container runtime: one gRPC connection to a CRI v1
// socket, the two services' generated clients on it, and a stream of events that says when to look
// at a pod again.
//
// The connection is made lazily and fixes itself: a call while the runtime is away waits for it
// until its context ends (WaitForReady), so that a restart of the runtime is a pause, not an
// error. Errors of calls are the runtime's gRPC status errors, untouched.
package cri

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage bounds one answer: lists of thousands of containers are some megabytes.
const maxMessage = 16 << 20

// Client is a connection to one runtime. Its fields are safe for concurrent use.
type Client struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient
	conn    grpc.ClientConnInterface
	version atomic.Pointer[runtimeapi.VersionResponse]
}

// Dial returns a client of the runtime at endpoint ("unix:///run/coracle/coracle.sock", or a path).
// It makes no call.
func Dial(endpoint string) (*Client, error) {
	path, found := strings.CutPrefix(endpoint, "unix://")
	if !found && strings.Contains(endpoint, "://") {
		return nil, fmt.Errorf("CRI endpoint %q: only unix sockets are supported, for example unix:///run/coracle/coracle.sock", endpoint)
	}
	if path == "" {
		return nil, fmt.Errorf("CRI endpoint is empty: give the runtime's socket, for example unix:///run/coracle/coracle.sock")
	}
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", addr)
		}),
		grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	return NewClient(conn), nil
}

// NewClient returns a client on a connection that is there already.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{
		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
		Images:  runtimeapi.NewImageServiceClient(conn),
		conn:    conn,
	}
}

// Version returns what the runtime says it is; it is asked once.
func (c *Client) Version(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	if v := c.version.Load(); v != nil {
		return v, nil
	}
	v, err := c.Runtime.Version(ctx, &runtimeapi.VersionRequest{Version: "v1"})
	if err != nil {
		return nil, fmt.Errorf("ask the runtime's version: %w", err)
	}
	c.version.Store(v)
	return v, nil
}

// RuntimeName is the scheme of container ids in statuses ("coracle" of coracle://ID).
func (c *Client) RuntimeName(ctx context.Context) (string, error) {
	v, err := c.Version(ctx)
	return v.GetRuntimeName(), err
}

// Close ends the connection; calls under way fail.
func (c *Client) Close() error {
	if closer, ok := c.conn.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}
