// Package remote is the client of the URLs that CRI answers Exec and Attach with: Kubernetes'
// remote command protocol, version 4 over SPDY (KEP-4006 tells its history), which every CRI
// streaming server speaks. Kubernetes' own client is in client-go, whose dependencies are many
// times the size of the command that uses this. Its proxies, TLS and retries are of no use for a
// loopback URL that works once.
//
// A connection has one stream for each of stdin, stdout and stderr, one for window sizes as JSON,
// and one on which the server tells, last of all, how the command ended: a Status as
// JSON, in which the exit code is a cause.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Size is a terminal's.
type Size struct{ Width, Height uint16 }

// Streams are the caller's ends. Stdin may be nil; Stderr has to be nil with a terminal, which
// has one output. The URL was asked for with the same choice.
type Streams struct {
	// Stdin is read by a goroutine that outlives Run if it is not at its end by then: only its
	// owner can end that, by closing it or by ending the process.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Sizes, with a terminal, brings its size now and later; nil without.
	Sizes <-chan Size
}

// maxStatus bounds what a server may say of the end of a command, in bytes.
const maxStatus = 64 << 10

// Run connects and returns the command's exit code when it has ended and its output is
// written. An error is one of the way there; the command may have run. When ctx ends
// the connection does, and with it the command.
func Run(ctx context.Context, where string, s Streams) (exitCode int, err error) {
	conn, err := dial(ctx, where)
	if err != nil {
		return 0, err
	}
	var outputs, sizes sync.WaitGroup
	defer func() { _ = conn.Close(); sizes.Wait() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	status, err := stream(conn, remotecommand.StreamTypeError)
	if err != nil {
		return 0, err
	}
	_ = status.Close() // we have nothing to say on it
	if err := connect(conn, s, &outputs, &sizes); err != nil {
		return 0, err
	}
	said, err := io.ReadAll(io.LimitReader(status, maxStatus))
	outputs.Wait()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, fmt.Errorf("stream: %w", err)
	}
	return outcome(said)
}

func dial(ctx context.Context, where string) (httpstream.Connection, error) {
	to, err := url.Parse(where)
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	// A node's own stream server is never behind a proxy.
	upgrade, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		Proxier: func(*http.Request) (*url.URL, error) { return nil, nil },
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(httpstream.HeaderProtocolVersion, remotecommand.StreamProtocolV4Name)
	resp, err := upgrade.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	conn, err := upgrade.NewConnection(resp)
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	if got := resp.Header.Get(httpstream.HeaderProtocolVersion); got != remotecommand.StreamProtocolV4Name {
		return nil, errors.Join(fmt.Errorf("stream: the server speaks %q, not %s", got, remotecommand.StreamProtocolV4Name), conn.Close())
	}
	return conn, nil
}

// connect makes the streams that s has and copies from and to them. outputs ends with the command's
// output, sizes with the connection. Nothing is sent before all streams are there: a server that
// waits for the next stream does not read those before it.
func connect(conn httpstream.Connection, s Streams, outputs, sizes *sync.WaitGroup) error {
	var begin []func()
	open := func(kind string, wanted bool, copying func(httpstream.Stream)) error {
		if !wanted {
			return nil
		}
		st, err := stream(conn, kind)
		begin = append(begin, func() { copying(st) })
		return err
	}
	output := func(to io.Writer) func(httpstream.Stream) {
		return func(from httpstream.Stream) {
			_ = from.Close() // our direction
			outputs.Go(func() {
				if _, err := io.Copy(to, from); err != nil {
					// No one reads what the command writes; it must not wait for that forever.
					_ = conn.Close()
				}
			})
		}
	}
	for _, err := range []error{
		open(remotecommand.StreamTypeStdin, s.Stdin != nil, func(to httpstream.Stream) {
			go func() {
				_, _ = io.Copy(to, s.Stdin) // a command that has ended reads no more: no error of ours
				_ = to.Close()
			}()
		}),
		open(remotecommand.StreamTypeStdout, s.Stdout != nil, output(s.Stdout)),
		open(remotecommand.StreamTypeStderr, s.Stderr != nil, output(s.Stderr)),
		open(remotecommand.StreamTypeResize, s.Sizes != nil, func(to httpstream.Stream) {
			sizes.Go(func() { sendSizes(conn, to, s.Sizes) })
		}),
	} {
		if err != nil {
			return err
		}
	}
	for _, b := range begin {
		b()
	}
	return nil
}

// sendSizes ends with the connection.
func sendSizes(conn httpstream.Connection, to io.WriteCloser, sizes <-chan Size) {
	defer func() { _ = to.Close() }()
	encode := json.NewEncoder(to)
	for {
		select {
		case size, ok := <-sizes:
			if !ok || encode.Encode(remotecommand.TerminalSize(size)) != nil {
				return
			}
		case <-conn.CloseChan():
			return
		}
	}
}

func stream(conn httpstream.Connection, kind string) (httpstream.Stream, error) {
	s, err := conn.CreateStream(http.Header{remotecommand.StreamType: {kind}})
	if err != nil {
		return nil, fmt.Errorf("stream of %s: %w", kind, err)
	}
	return s, nil
}

// outcome reads the server's Status.
func outcome(said []byte) (exitCode int, err error) {
	if len(said) == 0 {
		return 0, errors.New("stream: the connection ended before the command did")
	}
	var status struct {
		Status, Message, Reason string
		Details                 struct {
			// On the wire a cause's type is called its reason.
			Causes []struct{ Reason, Message string }
		}
	}
	if err := json.Unmarshal(said, &status); err != nil {
		return 0, fmt.Errorf("stream: read the command's status from %.80q: %w", said, err)
	}
	if status.Status == "Success" {
		return 0, nil
	}
	if status.Reason == remotecommand.NonZeroExitCodeReason {
		for _, c := range status.Details.Causes {
			if c.Reason != remotecommand.ExitCodeCauseType {
				continue
			}
			code, err := strconv.ParseUint(c.Message, 10, 8)
			if err != nil {
				return 0, fmt.Errorf("stream: exit code %q: %w", c.Message, err)
			}
			return int(code), nil
		}
	}
	if status.Message == "" {
		return 0, fmt.Errorf("stream: unknown status of the command: %.80q", said)
	}
	message := status.Message
	// What upstream's server puts before a runtime's error says nothing more.
	for _, ornament := range []string{
		"Internal error occurred: ", "error executing command in container: ",
		"error attaching to container: ",
	} {
		message = strings.TrimPrefix(message, ornament)
	}
	return 0, errors.New(message)
}
