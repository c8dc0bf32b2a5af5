package cri

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// socket is a client of a stream over WebSocket.
type socket struct {
	*websocket.Conn
	t *testing.T
	// got is what came, by channel.
	got map[byte]*bytes.Buffer
}

func dialSocket(t *testing.T, url, protocol string) *socket {
	t.Helper()
	c, err := websocket.NewConfig(strings.Replace(url, "http://", "ws://", 1), "http://localhost/")
	if err != nil {
		t.Fatal(err)
	}
	c.Protocol = []string{protocol}
	conn, err := c.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &socket{Conn: conn, t: t, got: map[byte]*bytes.Buffer{}}
}

func (s *socket) send(message ...byte) {
	s.t.Helper()
	if err := websocket.Message.Send(s.Conn, message); err != nil {
		s.t.Fatal(err)
	}
}

// read reads until the server closes the connection.
func (s *socket) read() {
	for {
		var message []byte
		if err := websocket.Message.Receive(s.Conn, &message); err != nil {
			return
		}
		if len(message) > 0 {
			s.channel(message[0]).Write(message[1:])
		}
	}
}

func (s *socket) channel(n byte) *bytes.Buffer {
	if s.got[n] == nil {
		s.got[n] = &bytes.Buffer{}
	}
	return s.got[n]
}

// TestEndlessSize: a size without an end is read away, not kept.
func TestEndlessSize(t *testing.T) {
	from := io.MultiReader(
		strings.NewReader(strings.Repeat(`{"Width":80,"Height":24}`, 100)+`{"Width":1`),
		io.LimitReader(ones{}, 64<<20),
	)
	sizes := make(chan remotecommand.TerminalSize, 100)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	readSizes(t.Context(), from, sizes)
	runtime.ReadMemStats(&after)
	if n := len(sizes); n != 100 {
		t.Errorf("%d sizes", n)
	}
	if _, err := from.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("not read to its end: %v", err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
		t.Errorf("took %d bytes of memory", took)
	}
}

type ones struct{}

func (ones) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '1'
	}
	return len(p), nil
}

func TestExecOverWebSocket(t *testing.T) {
	for _, protocol := range []string{remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name} {
		for name, tt := range map[string]struct {
			code int32
			err  error
			want string
		}{
			"success": {0, nil, "0"},
			"exit 3":  {3, nil, "3"},
			"error":   {0, errdefs.ErrUnavailable, "-1"},
		} {
			t.Run(protocol+"/"+name, func(t *testing.T) {
				e := serve(t, &double{exec: func(_ context.Context, r pod.ExecRequest) (int32, error) {
					in := make([]byte, 5)
					_, _ = io.ReadFull(r.Streams.Stdin, in)
					_, _ = r.Streams.Stdout.Write(append([]byte("out:"), in...))
					_, _ = r.Streams.Stderr.Write([]byte("err"))
					return tt.code, tt.err
				}})
				resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{
					ContainerId: "c1", Cmd: []string{"cat"}, Stdin: true, Stdout: true, Stderr: true,
				})
				if err != nil {
					t.Fatal(err)
				}
				s := dialSocket(t, resp.Url, protocol)
				s.send(append([]byte{0}, "hello"...)...)
				s.read()
				if out, errOut := s.channel(1).String(), s.channel(2).String(); out != "out:hello" || errOut != "err" {
					t.Errorf("stdout %q, stderr %q", out, errOut)
				}
				if code, message := exitCode(t, s.channel(3)); code != tt.want {
					t.Errorf("code %s (%s), want %s", code, message, tt.want)
				}
			})
		}
	}
}

// TestEndOfInputOverWebSocket is what version 5 was made for.
func TestEndOfInputOverWebSocket(t *testing.T) {
	e := serve(t, &double{exec: func(_ context.Context, r pod.ExecRequest) (int32, error) {
		text, err := io.ReadAll(r.Streams.Stdin)
		_, _ = r.Streams.Stdout.Write(append(text, " and that was all"...))
		return 0, err
	}})
	resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"cat"}, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	s := dialSocket(t, resp.Url, remotecommand.StreamProtocolV5Name)
	s.send(append([]byte{0}, "hello"...)...)
	s.send(255, 0)
	s.read()
	if got := s.channel(1).String(); got != "hello and that was all" {
		t.Errorf("output %q", got)
	}
}

func TestTerminalOverWebSocket(t *testing.T) {
	sizes := make(chan pod.Size, 1)
	e := serve(t, &double{
		containers: []pod.Container{{ID: "c1", Config: podconfig.Container{TTY: true}}},
		attach: func(ctx context.Context, tty bool, s pod.Streams) error {
			select {
			case size := <-s.Resize:
				sizes <- size
			case <-ctx.Done():
			}
			return nil
		},
	})
	resp, err := e.runtime.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "c1", Tty: true, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	s := dialSocket(t, resp.Url, remotecommand.StreamProtocolV5Name)
	size, err := json.Marshal(remotecommand.TerminalSize{Width: 80, Height: 25})
	if err != nil {
		t.Fatal(err)
	}
	s.send(append([]byte{4}, size...)...)
	if got := <-sizes; got != (pod.Size{Width: 80, Height: 25}) {
		t.Errorf("size %v", got)
	}
	s.read()
}

// TestClientOfWebSocketLeaves: the command must not go on for no one.
func TestClientOfWebSocketLeaves(t *testing.T) {
	_, url, began, ended := heldExec(t)
	s := dialSocket(t, url, remotecommand.StreamProtocolV5Name)
	<-began
	_ = s.Close()
	<-ended
}

// TestNonsenseOverWebSocket ends nothing but its own connection.
func TestNonsenseOverWebSocket(t *testing.T) {
	e := serve(t, &double{exec: func(ctx context.Context, r pod.ExecRequest) (int32, error) {
		_, err := io.Copy(io.Discard, r.Streams.Stdin)
		return 0, err
	}})
	for name, messages := range map[string][][]byte{
		"empty":            {{}},
		"no such channel":  {{9, 1, 2}},
		"end of none":      {{255}},
		"end of the ninth": {{255, 9}},
		"output to stdout": {{1, 'x'}},
		"bad size":         {append([]byte{4}, "{"...), append([]byte{4}, "[]"...)},
		"end twice":        {{255, 0}, {255, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"cat"}, Stdin: true, Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			s := dialSocket(t, resp.Url, remotecommand.StreamProtocolV5Name)
			for _, m := range append(messages, []byte{255, 0}) {
				if websocket.Message.Send(s.Conn, m) != nil {
					break
				}
			}
			s.read()
		})
	}
}

func TestStreamOptionsAreChecked(t *testing.T) {
	e := serve(t, &double{containers: []pod.Container{aContainer()}})
	for name, r := range map[string]*runtimeapi.ExecRequest{
		"terminal and stderr": {ContainerId: "c", Cmd: []string{"x"}, Tty: true, Stdout: true, Stderr: true},
		"no stream":           {ContainerId: "c", Cmd: []string{"x"}},
	} {
		if _, err := e.runtime.Exec(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x tokens
		serve := func(http.ResponseWriter, *http.Request) {}
		add := func() string {
			t.Helper()
			token, err := x.add("exec", serve)
			if err != nil {
				t.Fatal(err)
			}
			return token
		}
		token := add()
		if _, ok := x.take("attach" + strings.TrimPrefix(token, "exec")); ok {
			t.Error("a token of one kind serves for another")
		}
		if _, ok := x.take(token); !ok {
			t.Error("the token is not known")
		}
		if _, ok := x.take(token); ok {
			t.Error("the token works twice")
		}
		token = add()
		time.Sleep(tokenLife)
		if _, ok := x.take(token); ok {
			t.Error("the token works for ever")
		}
		for range maxTokens {
			token = add()
		}
		if _, err := x.add("exec", serve); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one more: %v", err)
		}
		if _, ok := x.take(token); !ok {
			t.Error("the newest is gone")
		}
		add()
		time.Sleep(tokenLife)
		add()
		if len(x.open) != 1 || len(x.order) != 1 {
			t.Errorf("%d and %d kept after their time", len(x.open), len(x.order))
		}
	})
}

// TestStatusBeforeVersion4 is a sentence, or nothing for success.
func TestStatusBeforeVersion4(t *testing.T) {
	const binary, base64Form = wsstream.ChannelWebSocketProtocol, wsstream.Base64ChannelWebSocketProtocol
	for protocol, encoded := range map[string]bool{binary: false, base64Form: true, "v4." + base64Form: true} {
		for code, want := range map[int32]string{0: "", 3: "command terminated with non-zero exit code: command exited with code 3"} {
			t.Run(fmt.Sprint(protocol, code), func(t *testing.T) {
				e := serve(t, &double{exec: func(_ context.Context, r pod.ExecRequest) (int32, error) {
					_, _ = r.Streams.Stdout.Write([]byte("out"))
					return code, nil
				}})
				resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"x"}, Stdout: true})
				if err != nil {
					t.Fatal(err)
				}
				s := dialSocket(t, resp.Url, protocol)
				s.read()
				text := func(n byte) string {
					if !encoded {
						return s.channel(n).String()
					}
					b, err := base64.StdEncoding.DecodeString(s.channel('0' + n).String())
					if err != nil {
						t.Error(err)
					}
					return string(b)
				}
				if out := text(1); out != "out" {
					t.Errorf("output %q", out)
				}
				got := text(3)
				if strings.HasPrefix(protocol, "v4.") {
					var st struct{ Message string }
					if err := json.Unmarshal([]byte(got), &st); err != nil {
						t.Fatalf("%q: %v", got, err)
					}
					got = st.Message
				}
				if got != want {
					t.Errorf("status %q, want %q", got, want)
				}
			})
		}
	}
}
