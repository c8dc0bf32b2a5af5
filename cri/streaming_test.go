package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/errdefs"
)

// dial opens a stream connection as crictl and the kubelet do.
func dial(t *testing.T, address, protocol string) httpstream.Connection {
	t.Helper()
	rt, err := spdy.NewRoundTripper(nil)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(httpstream.HeaderProtocolVersion, protocol)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	conn, err := rt.NewConnection(resp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func open(t *testing.T, conn httpstream.Connection, kind string, more http.Header) httpstream.Stream {
	t.Helper()
	h := http.Header{}
	for k, v := range more {
		h[k] = v
	}
	h.Set(remotecommand.StreamType, kind)
	s, err := conn.CreateStream(h)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// exitCode reads the end of an exec from its error stream: 0, or the code in the
// status, or -1 with the message of another failure.
func exitCode(t *testing.T, s io.Reader) (code, message string) {
	t.Helper()
	text, err := io.ReadAll(s)
	if err != nil {
		t.Fatal(err)
	}
	var st struct {
		Status, Reason, Message string
		Details                 struct{ Causes []struct{ Message string } }
	}
	if err := json.Unmarshal(text, &st); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	switch {
	case st.Status == "Success":
		return "0", ""
	case st.Reason == remotecommand.NonZeroExitCodeReason:
		return st.Details.Causes[0].Message, ""
	}
	return "-1", st.Message
}

func TestExecStream(t *testing.T) {
	for name, tt := range map[string]struct {
		code int32
		err  error
		want string
	}{
		"success": {0, nil, "0"},
		"exit 3":  {3, nil, "3"},
		"error":   {0, errdefs.ErrUnavailable, "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := serve(t, &double{exec: func(_ context.Context, r pod.ExecRequest) (int32, error) {
				text, _ := io.ReadAll(r.Streams.Stdin)
				_, _ = r.Streams.Stdout.Write(append([]byte("out:"), text...))
				_, _ = r.Streams.Stderr.Write([]byte("err"))
				return tt.code, tt.err
			}})
			resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{
				ContainerId: "c1", Cmd: []string{"cat", "-"}, Stdin: true, Stdout: true, Stderr: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			conn := dial(t, resp.Url, remotecommand.StreamProtocolV4Name)
			failed := open(t, conn, remotecommand.StreamTypeError, nil)
			in := open(t, conn, remotecommand.StreamTypeStdin, nil)
			out := open(t, conn, remotecommand.StreamTypeStdout, nil)
			errOut := open(t, conn, remotecommand.StreamTypeStderr, nil)
			_, _ = in.Write([]byte("hello"))
			_ = in.Close()
			if text, _ := io.ReadAll(out); string(text) != "out:hello" {
				t.Errorf("stdout %q", text)
			}
			if text, _ := io.ReadAll(errOut); string(text) != "err" {
				t.Errorf("stderr %q", text)
			}
			if code, message := exitCode(t, failed); code != tt.want {
				t.Errorf("code %s (%s), want %s", code, message, tt.want)
			}
			if c := e.last(t); c.method != "Exec" || c.args[0] != "c1" || len(c.args[1].([]string)) != 2 || c.args[2] != false {
				t.Errorf("%v", c)
			}
		})
	}
}

func TestTerminalSizesReachTheContainer(t *testing.T) {
	sizes := make(chan pod.Size, 1)
	e := serve(t, &double{exec: func(ctx context.Context, r pod.ExecRequest) (int32, error) {
		select {
		case s := <-r.Streams.Resize:
			sizes <- s
		case <-ctx.Done():
		}
		return 0, nil
	}})
	resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"sh"}, Stdout: true, Tty: true})
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, resp.Url, remotecommand.StreamProtocolV4Name)
	failed := open(t, conn, remotecommand.StreamTypeError, nil)
	open(t, conn, remotecommand.StreamTypeStdout, nil)
	resize := open(t, conn, remotecommand.StreamTypeResize, nil)
	_, _ = resize.Write([]byte(`{"Width":80,"Height":24}`))
	if got := <-sizes; got != (pod.Size{Width: 80, Height: 24}) {
		t.Errorf("size %+v", got)
	}
	if code, _ := exitCode(t, failed); code != "0" {
		t.Errorf("code %s", code)
	}
}

func TestAClientThatLeavesIsNoError(t *testing.T) {
	running, gone := t.Context(), canceled()
	stopped := fmt.Errorf("attach to container c: %w", context.Canceled)
	for _, tt := range []struct {
		name           string
		server, client context.Context
		err, want      error
	}{
		{"client left", running, gone, stopped, nil},
		{"daemon ends", gone, gone, stopped, stopped},
		{"canceled elsewhere", running, running, stopped, stopped},
		{"another error", running, gone, io.ErrUnexpectedEOF, io.ErrUnexpectedEOF},
		{"no error", running, running, nil, nil},
	} {
		if err := (streams{ctx: tt.server}).left(tt.client, tt.err); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestAttachUsesTheContainersTerminal(t *testing.T) {
	for _, tty := range []bool{true, false} {
		c := aContainer()
		c.Config.TTY = tty
		e := serve(t, &double{containers: []pod.Container{c}, attach: func(_ context.Context, _ bool, s pod.Streams) error {
			_, err := s.Stdout.Write([]byte("x"))
			return err
		}})
		resp, err := e.runtime.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "c1", Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		conn := dial(t, resp.Url, remotecommand.StreamProtocolV4Name)
		failed := open(t, conn, remotecommand.StreamTypeError, nil)
		out := open(t, conn, remotecommand.StreamTypeStdout, nil)
		if text, _ := io.ReadAll(out); string(text) != "x" {
			t.Errorf("stdout %q", text)
		}
		if code, message := exitCode(t, failed); code != "0" {
			t.Errorf("%s %s", code, message)
		}
		if last := e.last(t); last.args[0] != "c1234" || last.args[1] != tty {
			t.Errorf("%v", last)
		}
	}
}

func TestPortForwardStream(t *testing.T) {
	e := serve(t, &double{forward: func(_ int32, conn io.ReadWriteCloser) error {
		text := make([]byte, 4)
		if _, err := io.ReadFull(conn, text); err != nil {
			return err
		}
		_, err := conn.Write(append([]byte("re:"), text...))
		return errors.Join(err, conn.Close())
	}})
	resp, err := e.runtime.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p", Port: []int32{8080}})
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, resp.Url, portforward.ProtocolV1Name)
	to := http.Header{}
	to.Set(portforward.PortHeader, "8080")
	to.Set(portforward.PortForwardRequestIDHeader, "1")
	open(t, conn, portforward.StreamTypeError, to)
	data := open(t, conn, portforward.StreamTypeData, to)
	_, _ = data.Write([]byte("ping"))
	if text, _ := io.ReadAll(data); string(text) != "re:ping" {
		t.Errorf("%q", text)
	}
	if c := e.last(t); c.args[0] != "p" || c.args[1] != int32(8080) {
		t.Errorf("%v", c)
	}
}

func TestStreamURLs(t *testing.T) {
	e := serve(t, &double{exec: func(context.Context, pod.ExecRequest) (int32, error) { return 0, nil }})
	resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"true"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(resp.Url)
	if err != nil || u.Hostname() != "127.0.0.1" || u.Port() == "0" {
		t.Errorf("url %q, %v", resp.Url, err)
	}
	u.Path = "/exec/forged"
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, u.String(), nil)
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusNotFound {
		t.Errorf("forged token: %s", answer.Status)
	}

	for name, do := range map[string]func() error{
		"exec without command": func() error {
			_, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c", Stdout: true})
			return err
		},
		"exec without streams": func() error {
			_, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}})
			return err
		},
		"exec with tty and stderr": func() error {
			_, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Tty: true, Stderr: true})
			return err
		},
		"attach without streams": func() error {
			_, err := e.runtime.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "c"})
			return err
		},
		"port 0": func() error {
			_, err := e.runtime.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p", Port: []int32{0}})
			return err
		},
		"port 65536": func() error {
			_, err := e.runtime.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p", Port: []int32{65536}})
			return err
		},
		"negative timeout": func() error {
			_, err := e.runtime.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "c", Cmd: []string{"x"}, Timeout: -1})
			return err
		},
	} {
		if err := do(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

// heldExec starts an exec whose command goes on until its context ends. began is closed then, ended
// gets the context's error.
func heldExec(t *testing.T) (e *edge, url string, began chan struct{}, ended chan error) {
	t.Helper()
	began, ended = make(chan struct{}), make(chan error, 1)
	e = serve(t, &double{exec: func(ctx context.Context, _ pod.ExecRequest) (int32, error) {
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return 0, ctx.Err()
	}})
	resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"sleep"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	return e, resp.Url, began, ended
}

func TestStopEndsStreams(t *testing.T) {
	e, url, began, ended := heldExec(t)
	conn := dial(t, url, remotecommand.StreamProtocolV4Name)
	open(t, conn, remotecommand.StreamTypeError, nil)
	open(t, conn, remotecommand.StreamTypeStdout, nil)
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e.server.Stop(ctx)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestStreamAddressInUse(t *testing.T) {
	e := serve(t, &double{})
	_, err := New(Config{StreamAddress: e.server.stream.listen.Addr().String()}, Deps{})
	if err == nil {
		t.Fatal("two servers on one address")
	}
}
