package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/goleak"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// command is what the server runs for an exec.
type command func(ctx context.Context, in io.Reader, out, errOut io.WriteCloser, sizes <-chan remotecommand.TerminalSize) error

func (c command) Exec(ctx context.Context, _ string, _ []string, in io.Reader, out, errOut io.WriteCloser, _ bool,
	sizes <-chan remotecommand.TerminalSize,
) error {
	return c(ctx, in, out, errOut, sizes)
}

func (command) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan remotecommand.TerminalSize) error {
	return errors.New("not here")
}

func (command) PortForward(context.Context, string, int32, io.ReadWriteCloser) error {
	return errors.New("not here")
}

// serve returns a URL of upstream's own streaming server that runs c once.
func serve(t *testing.T, c command, r *runtimeapi.ExecRequest) string {
	t.Helper()
	var s streaming.Server
	h := httptest.NewServer(nil)
	t.Cleanup(h.Close)
	base, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	config := streaming.DefaultConfig
	config.BaseURL = base
	if s, err = streaming.NewServer(config, c); err != nil {
		t.Fatal(err)
	}
	h.Config.Handler = s
	r.ContainerId, r.Cmd, r.Stdout = "id", []string{"command"}, true
	answer, err := s.GetExec(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetUrl()
}

func TestCommandsEnd(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  error
		code int
		err  string
	}{
		{name: "well"},
		{name: "with a code", end: utilexec.CodeExitError{Err: errors.New("it ended"), Code: 42}, code: 42},
		{name: "with the last code", end: utilexec.CodeExitError{Err: errors.New("it ended"), Code: 255}, code: 255},
		{name: "before it began", end: errors.New("no such program"), err: "no such program"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			where := serve(t, func(_ context.Context, in io.Reader, out, errOut io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
				said, _ := io.ReadAll(in)
				_, _ = fmt.Fprintf(out, "out %s", said)
				_, _ = fmt.Fprintf(errOut, "err %s", said)
				return tc.end
			}, &runtimeapi.ExecRequest{Stdin: true, Stderr: true})
			var out, errOut bytes.Buffer
			code, err := Run(t.Context(), where, Streams{Stdin: strings.NewReader("x"), Stdout: &out, Stderr: &errOut})
			if code != tc.code || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%d, %v", code, err)
			}
			if out.String() != "out x" || errOut.String() != "err x" {
				t.Errorf("%q, %q", out.String(), errOut.String())
			}
		})
	}
}

// All output has arrived when Run returns, however much it is; and input that is there at once does
// not keep the other streams from being made.
func TestMuchOutput(t *testing.T) {
	const much = 20 << 20
	where := serve(t, func(_ context.Context, in io.Reader, out, _ io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
		_, err := io.Copy(out, in)
		return err
	}, &runtimeapi.ExecRequest{Stdin: true, Stderr: true})
	var n counting
	code, err := Run(t.Context(), where, Streams{Stdin: io.LimitReader(zeros{}, much), Stdout: &n, Stderr: io.Discard})
	if code != 0 || err != nil || n != much {
		t.Errorf("%d, %v, %d bytes", code, err, n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type counting int

func (c *counting) Write(p []byte) (int, error) { *c += counting(len(p)); return len(p), nil }

func TestTerminalSizes(t *testing.T) {
	where := serve(t, func(_ context.Context, _ io.Reader, out, _ io.WriteCloser, sizes <-chan remotecommand.TerminalSize) error {
		for range 2 {
			s := <-sizes
			_, _ = fmt.Fprintf(out, "%dx%d ", s.Width, s.Height)
		}
		return nil
	}, &runtimeapi.ExecRequest{Stdin: true, Tty: true})
	sizes := make(chan Size, 2)
	sizes <- Size{80, 25}
	sizes <- Size{100, 40}
	in, keys := io.Pipe()
	defer func() { _ = keys.Close() }()
	var out bytes.Buffer
	code, err := Run(t.Context(), where, Streams{Stdin: in, Stdout: &out, Sizes: sizes})
	if code != 0 || err != nil || out.String() != "80x25 100x40 " {
		t.Errorf("%d, %v, %q", code, err, out.String())
	}
}

func TestEndOfContextEndsTheCommand(t *testing.T) {
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	where := serve(t, func(_ context.Context, in io.Reader, _, _ io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
		cancel()
		_, err := io.Copy(io.Discard, in)
		ended <- err
		return err
	}, &runtimeapi.ExecRequest{Stdin: true})
	in, keys := io.Pipe()
	defer func() { _ = keys.Close() }()
	if _, err := Run(ctx, where, Streams{Stdin: in, Stdout: io.Discard}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-ended
}

// A command must not wait for a reader that has gone.
func TestOutputThatCannotBeWritten(t *testing.T) {
	where := serve(t, func(_ context.Context, _ io.Reader, out, _ io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
		_, err := io.Copy(out, zeros{})
		return err
	}, &runtimeapi.ExecRequest{})
	if _, err := Run(t.Context(), where, Streams{Stdout: broken{}}); err == nil {
		t.Error("no error")
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestRefused(t *testing.T) {
	where := serve(t, func(context.Context, io.Reader, io.WriteCloser, io.WriteCloser, <-chan remotecommand.TerminalSize) error {
		return nil
	}, &runtimeapi.ExecRequest{})
	for _, tc := range []struct{ name, where, err string }{
		{"the token was used", where, ""},
		{"again", where, "404"},
		{"no one there", "http://127.0.0.1:1/exec/x", "refused"},
		{"no URL", "http://\x00", "stream: "},
	} {
		_, err := Run(t.Context(), tc.where, Streams{Stdout: io.Discard})
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.err)
		}
	}
}

func TestOutcome(t *testing.T) {
	for _, tc := range []struct{ name, said, err string }{
		{"nothing", "", "the connection ended before the command did"},
		{"no JSON", "command terminated", `read the command's status from "command terminated"`},
		{
			"a code that is none", `{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"-1"}]}}`,
			`exit code "-1"`,
		},
		{"no cause", `{"status":"Failure","reason":"NonZeroExitCode"}`, "unknown status of the command"},
		{"a message", `{"status":"Failure","message":"gone"}`, "gone"},
	} {
		if code, err := outcome([]byte(tc.said)); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %d, %v", tc.name, code, err)
		}
	}
}

func FuzzOutcome(f *testing.F) {
	f.Add([]byte(`{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}`))
	f.Fuzz(func(t *testing.T, said []byte) {
		if code, _ := outcome(said); code < 0 || code > 255 {
			t.Errorf("exit code %d", code)
		}
	})
}
