package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/state"
)

// dialLimit bounds the connection to a port of the pod, over its own loopback.
const dialLimit = 10 * time.Second

// CheckPod says whether PortForward could begin now.
func (v *Server) CheckPod(podID string) error {
	_, err := state.FindReady(v.pods, podID)
	return failure.During("forward port of pod", podID, err)
}

// PortForward connects stream to a TCP port on the pod's loopback (127.0.0.1, then ::1)
// and copies until both sides have ended or ctx ends. It closes stream.
func (v *Server) PortForward(ctx context.Context, podID string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	e, err := state.FindReady(v.pods, podID)
	if err != nil {
		return failure.During("forward port of pod", podID, err)
	}
	if port < 1 || port > 65535 {
		return failure.During("forward port of pod", e.ID, errdefs.Errorf(errdefs.ErrInvalid, "port %d is not between 1 and 65535", port))
	}
	return failure.During("forward port of pod", e.ID, v.life.Tie(ctx, func(ctx context.Context) error {
		conn, err := dialLoopback(ctx, e.Get().Namespaces.Net, port)
		if err != nil {
			return errdefs.Errorf(errdefs.ErrUnavailable, "port %d: %w", port, err)
		}
		return splice(ctx, conn.(*net.TCPConn), stream)
	}))
}

// dialLoopback dials a port in the network namespace at path, the host's if empty.
func dialLoopback(ctx context.Context, path string, port int32) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	dial := func() (net.Conn, error) {
		// One literal address each: the dialer then makes its socket on the
		// goroutine that calls it, and so in that thread's namespace.
		var d net.Dialer
		p := strconv.Itoa(int(port))
		conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", p))
		if err != nil {
			var err6 error
			if conn, err6 = d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", p)); err6 != nil {
				return nil, errors.Join(err, err6)
			}
		}
		return conn, nil
	}
	if path == "" {
		return dial()
	}
	var conn net.Conn
	err := ownthread.Run(func() (err error) { // ends with the dial, which ctx bounds
		if err = enterNetNS(path); err == nil {
			conn, err = dial()
		}
		return err
	})
	return conn, err
}

// enterNetNS puts the calling thread into a network namespace.
func enterNetNS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

// splice copies both ways. The end of one direction is passed on by closing the other
// side's half, so that each protocol sees the end that its peer meant.
func splice(ctx context.Context, conn *net.TCPConn, stream io.ReadWriteCloser) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() {
		conn.Close()
		stream.Close()
	})()
	toPod := make(chan error, 1)
	go func() { // ends when stream or conn is closed, which this function sees to
		_, err := io.Copy(conn, stream)
		conn.CloseWrite()
		toPod <- err
	}()
	_, err := io.Copy(stream, conn)
	if half, ok := stream.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	} else {
		stream.Close()
	}
	other := <-toPod
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && !benign(other) {
		err = other
	}
	if benign(err) {
		return nil
	}
	return err
}

// benign says whether a copy ended only because the other side had gone.
func benign(err error) bool {
	return err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}
