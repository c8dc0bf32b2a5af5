package cri

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/coracle-project/coracle/pod"
)

// vastSize is a terminal's size that takes a megabyte: who keeps all of it before looking at it can
// be made to keep anything.
var vastSize = `{"Width":80,` + strings.Repeat(" ", 1<<20) + `"Height":24}`

// TestVastSizeIsNotKept, in any version, and the command goes on.
func TestVastSizeIsNotKept(t *testing.T) {
	for _, protocol := range []string{
		"SPDY " + remotecommand.StreamProtocolV4Name, "SPDY " + remotecommand.StreamProtocolV3Name,
		"WebSocket v4.channel.k8s.io", "WebSocket " + remotecommand.StreamProtocolV5Name,
	} {
		t.Run(protocol, func(t *testing.T) {
			e := serve(t, &double{exec: func(_ context.Context, r pod.ExecRequest) (int32, error) {
				told := make(chan int, 1)
				go func() {
					n := 0
					for range r.Streams.Resize {
						n++
					}
					told <- n
				}()
				first := make([]byte, 1)
				_, _ = io.ReadFull(r.Streams.Stdin, first)
				_, _ = r.Streams.Stdout.Write(first)
				go func() { _, _ = io.Copy(io.Discard, r.Streams.Stdin) }()
				if n := <-told; n != 0 {
					t.Errorf("%d sizes", n)
				}
				return 0, nil
			}})
			resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{
				ContainerId: "c1", Cmd: []string{"sh"}, Stdin: true, Stdout: true,
				Tty: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			kind, version, _ := strings.Cut(protocol, " ")
			if kind == "WebSocket" {
				s := dialSocket(t, resp.Url, version)
				for at := range 16 {
					part := len(vastSize) / 16
					if err := websocket.Message.Send(s.Conn, append([]byte{4}, vastSize[at*part:(at+1)*part]...)); err != nil {
						t.Fatal(err)
					}
				}
				s.send(0, 'x')
				for s.channel(1).Len() == 0 {
					var message []byte
					if err := websocket.Message.Receive(s.Conn, &message); err != nil {
						t.Fatal(err)
					}
					if len(message) > 0 {
						s.channel(message[0]).Write(message[1:])
					}
				}
				_ = s.Close() // ends the sizes
				return
			}
			conn := dial(t, resp.Url, version)
			open(t, conn, remotecommand.StreamTypeError, nil)
			in := open(t, conn, remotecommand.StreamTypeStdin, nil)
			out := open(t, conn, remotecommand.StreamTypeStdout, nil)
			sizes := open(t, conn, remotecommand.StreamTypeResize, nil)
			if _, err := io.WriteString(sizes, vastSize); err != nil {
				t.Fatal(err)
			}
			_ = sizes.Close()
			_, _ = io.WriteString(in, "x")
			if b, err := io.ReadAll(out); err != nil || string(b) != "x" {
				t.Errorf("output %q, %v", b, err)
			}
		})
	}
}

// TestStatusOverOldSPDY is a sentence, or nothing for success.
func TestStatusOverOldSPDY(t *testing.T) {
	for code, want := range map[int32]string{0: "", 3: "command terminated with non-zero exit code: command exited with code 3"} {
		for _, version := range []string{
			remotecommand.StreamProtocolV1Name, remotecommand.StreamProtocolV2Name,
			remotecommand.StreamProtocolV3Name,
		} {
			e := serve(t, &double{exec: func(context.Context, pod.ExecRequest) (int32, error) { return code, nil }})
			resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"x"}, Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			conn := dial(t, resp.Url, version)
			failed := open(t, conn, remotecommand.StreamTypeError, nil)
			open(t, conn, remotecommand.StreamTypeStdout, nil)
			if text, err := io.ReadAll(failed); err != nil || string(text) != want {
				t.Errorf("%s: status %q (%v), want %q", version, text, err, want)
			}
		}
	}
}

// TestUnexpectedStreams: streams that were not asked for are refused, and so are duplicates. The
// command runs with those that it should have.
func TestUnexpectedStreams(t *testing.T) {
	e := serve(t, &double{exec: func(_ context.Context, r pod.ExecRequest) (int32, error) {
		_, err := io.Copy(r.Streams.Stdout, r.Streams.Stdin)
		return 0, err
	}})
	resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"cat"}, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, resp.Url, remotecommand.StreamProtocolV4Name)
	failed := open(t, conn, remotecommand.StreamTypeError, nil)
	for _, kind := range []string{
		"", "nonsense", remotecommand.StreamTypeStderr, remotecommand.StreamTypeResize,
		remotecommand.StreamTypeError,
	} {
		if _, err := conn.CreateStream(http.Header{http.CanonicalHeaderKey(remotecommand.StreamType): {kind}}); err == nil {
			t.Errorf("stream %q is open", kind)
		}
	}
	in := open(t, conn, remotecommand.StreamTypeStdin, nil)
	out := open(t, conn, remotecommand.StreamTypeStdout, nil)
	_, _ = io.WriteString(in, "hello")
	_ = in.Close()
	if text, err := io.ReadAll(out); err != nil || string(text) != "hello" {
		t.Errorf("output %q, %v", text, err)
	}
	if code, message := exitCode(t, failed); code != "0" {
		t.Errorf("code %s, %s", code, message)
	}
}

// TestStderrInPlaceOfSizes is what client-go opens for a terminal if its StreamOptions do not say
// Tty. The kubelet serves it.
func TestStderrInPlaceOfSizes(t *testing.T) {
	e := serve(t, &double{exec: func(_ context.Context, r pod.ExecRequest) (int32, error) {
		if r.Streams.Stderr != nil || r.Streams.Resize != nil {
			t.Error("a terminal with stderr, or with sizes that never come")
		}
		_, err := io.WriteString(r.Streams.Stdout, "hello")
		return 0, err
	}})
	resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"x"}, Stdout: true, Tty: true})
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, resp.Url, remotecommand.StreamProtocolV4Name)
	failed := open(t, conn, remotecommand.StreamTypeError, nil)
	out := open(t, conn, remotecommand.StreamTypeStdout, nil)
	errOut := open(t, conn, remotecommand.StreamTypeStderr, nil)
	for from, want := range map[io.Reader]string{out: "hello", errOut: ""} {
		if text, err := io.ReadAll(from); err != nil || string(text) != want {
			t.Errorf("output %q, %v, want %q", text, err, want)
		}
	}
	if code, message := exitCode(t, failed); code != "0" {
		t.Errorf("code %s, %s", code, message)
	}
}

// TestClientLeavesBeforeItsStreams: nothing runs, and nothing waits for them.
func TestClientLeavesBeforeItsStreams(t *testing.T) {
	e := serve(t, &double{exec: func(context.Context, pod.ExecRequest) (int32, error) {
		t.Error("the command runs")
		return 0, nil
	}})
	resp, err := e.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"x"}, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, resp.Url, remotecommand.StreamProtocolV4Name)
	open(t, conn, remotecommand.StreamTypeError, nil)
	_ = conn.Close()
	<-conn.CloseChan()
}

// TestClientOfSPDYLeaves: a command that reads and prints nothing must not go on for no one.
func TestClientOfSPDYLeaves(t *testing.T) {
	_, url, began, ended := heldExec(t)
	conn := dial(t, url, remotecommand.StreamProtocolV4Name)
	open(t, conn, remotecommand.StreamTypeError, nil)
	open(t, conn, remotecommand.StreamTypeStdout, nil)
	<-began
	_ = conn.Close()
	<-ended
}
