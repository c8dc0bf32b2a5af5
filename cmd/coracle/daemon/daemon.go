// Package daemon is how the operator's commands reach coracled: where its socket is, one
// connection for the length of a command, and errors as a person wants to read them.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// AddressVariable names the environment variable that stands in for --address.
const AddressVariable = "CORACLE_ADDRESS"

// maxMessage bounds one answer: a list of all containers of a large node passes gRPC's own 4 MiB.
const maxMessage = 16 << 20

// CompletionLimit bounds how long a shell waits for completions if coracled hangs.
const CompletionLimit = 5 * time.Second

// Daemon is a coracled that may or may not run.
type Daemon struct {
	address  string
	fallback func() string
}

// New returns the daemon whose socket is at the path that fallback returns, unless a flag or the
// environment say otherwise.
func New(fallback func() string) *Daemon { return &Daemon{fallback: fallback} }

// Define adds the flag --address.
func (d *Daemon) Define(f *pflag.FlagSet) {
	f.StringVar(&d.address, "address", "", "unix socket of coracled (or $"+AddressVariable+"); follows --state unless given")
}

// Socket is the path of the daemon's socket.
func (d *Daemon) Socket() string {
	for _, given := range []string{d.address, os.Getenv(AddressVariable)} {
		if given != "" {
			return strings.TrimPrefix(given, "unix://")
		}
	}
	return d.fallback()
}

// Call does work over a connection. An interrupt ends the context of the work. What the daemon
// answers with an error comes back as its sentence, without gRPC's ornaments.
func (d *Daemon) Call(ctx context.Context, work func(ctx context.Context, conn *grpc.ClientConn) error) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	conn, err := grpc.NewClient("unix:"+d.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return d.Plain(work(ctx, conn))
}

// ErrInterrupted is what Call returns when the user has ended the work.
var ErrInterrupted = errors.New("interrupted")

// Plain makes of a status what its sentence says.
func (d *Daemon) Plain(err error) error {
	if errors.Is(err, context.Canceled) {
		return ErrInterrupted
	}
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	switch s.Code() {
	case codes.Canceled:
		return ErrInterrupted
	case codes.Unavailable:
		if _, gone := os.Stat(d.Socket()); gone != nil {
			return fmt.Errorf("coracled does not run here: %w; start it, or say where its socket is with --address or --state", gone)
		}
		if errors.Is(probe(d.Socket()), os.ErrPermission) {
			return fmt.Errorf("the socket %s is root's; run this as root", d.Socket())
		}
	case codes.Unimplemented:
		return fmt.Errorf("%s; the coracled on %s is older than this command", s.Message(), d.Socket())
	}
	return errors.New(s.Message())
}

// probe says why the socket cannot be connected to.
func probe(path string) error {
	if err := syscall.Access(path, 0o6); err != nil {
		return err
	}
	return nil
}
