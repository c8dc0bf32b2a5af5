package testkit

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CRI is a client of both CRI services.
type CRI struct {
	cri.RuntimeServiceClient
	Images cri.ImageServiceClient
	conn   *grpc.ClientConn
}

// Quickly makes a client reconnect quickly to a runtime that was killed. Without it the client
// first waits a second, which is most of the time of a test that kills.
var Quickly = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}, MinConnectTimeout: patience,
})

// NewCRI makes a client of the runtime that listens on a socket.
func NewCRI(socket string) (*CRI, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), Quickly)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", socket, err)
	}
	return &CRI{cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn), conn}, nil
}

// Close disconnects.
func (c *CRI) Close() error { return c.conn.Close() }

// CRI is a client that is closed with the test.
func (d *Daemon) CRI(t testing.TB) *CRI {
	t.Helper()
	c, err := NewCRI(d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
