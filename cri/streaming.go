package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/pod"
)

// Sessions are commands in containers, connections to their stdio, and forwarded ports.
type Sessions interface {
	ExecSync(ctx context.Context, r pod.ExecRequest, timeout time.Duration) (pod.ExecSyncResult, error)
	Exec(ctx context.Context, r pod.ExecRequest) (int32, error)
	Attach(ctx context.Context, id string, tty bool, s pod.Streams) error
	PortForward(ctx context.Context, podID string, port int32, conn io.ReadWriteCloser) error
	CheckExec(id string) error
	CheckAttach(id string) error
	CheckPod(podID string) error
	Container(id string) (pod.Container, error)
}

// Exec checks that the container runs and answers with a URL that runs the command
// once.
func (s *service) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	if len(r.GetCmd()) == 0 {
		return nil, field.Invalid("cmd", "is required")
	}
	if err := s.sessions.CheckExec(r.GetContainerId()); err != nil {
		return nil, err
	}
	o, err := streamOptions(r.GetStdin(), r.GetStdout(), r.GetStderr(), r.GetTty())
	if err != nil {
		return nil, err
	}
	url, err := s.stream.execURL(r, o)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecResponse{Url: url}, nil
}

// Attach checks that the container runs and answers with a URL to attach to it once.
func (s *service) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	if err := s.sessions.CheckAttach(r.GetContainerId()); err != nil {
		return nil, err
	}
	o, err := streamOptions(r.GetStdin(), r.GetStdout(), r.GetStderr(), r.GetTty())
	if err != nil {
		return nil, err
	}
	url, err := s.stream.attachURL(r, o)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.AttachResponse{Url: url}, nil
}

// streamOptions checks which streams are asked for, as CRI says of each field.
func streamOptions(stdin, stdout, stderr, tty bool) (remotecommand.Options, error) {
	o := remotecommand.Options{Stdin: stdin, Stdout: stdout, Stderr: stderr, TTY: tty}
	switch {
	case tty && stderr:
		return o, field.Invalid("stderr", "cannot be combined with tty: a terminal has one output")
	case !stdin && !stdout && !stderr:
		return o, field.Invalid("stdin", "one of stdin, stdout and stderr is required")
	}
	return o, nil
}

// PortForward checks that the pod is ready and answers with a URL to forward its
// ports once.
func (s *service) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	if err := field.Required("pod_sandbox_id", r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	for _, port := range r.GetPort() {
		if port < 1 || port > 65535 {
			return nil, field.Invalid("port", "%d is outside 1 to 65535", port)
		}
	}
	if err := s.sessions.CheckPod(r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	url, err := s.stream.forwardURL(r)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PortForwardResponse{Url: url}, nil
}

// streamServer serves the URLs. A URL is all that a client needs, so it has a random token, works
// once, and expires after a minute. Port forwarding is in the stream library, commands are in
// command.go.
type streamServer struct {
	runtime streams
	tokens  tokens
	http    *http.Server
	listen  net.Listener
	stop    context.CancelFunc
}

// streamIdle is how long a stream may be silent.
const streamIdle = 4 * time.Hour

// newStreamServer binds address.
func newStreamServer(address string, sessions Sessions, log *slog.Logger) (*streamServer, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("stream server: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &streamServer{runtime: streams{sessions: sessions, ctx: ctx}, listen: l, stop: stop}
	mux := http.NewServeMux()
	for _, method := range []string{"GET", "POST"} { // of WebSocket and of SPDY
		mux.HandleFunc(method+" /{kind}/{token}", s.begin)
	}
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		// Streams are hijacked connections, which Close does not reach;
		// this context does.
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// begin serves the stream of a token.
func (s *streamServer) begin(w http.ResponseWriter, r *http.Request) {
	serve, ok := s.tokens.take(r.PathValue("kind") + "/" + r.PathValue("token"))
	if !ok {
		http.NotFound(w, r)
		return
	}
	serve(w, r)
}

// url is where serve can be reached, once.
func (s *streamServer) url(kind string, serve http.HandlerFunc) (string, error) {
	path, err := s.tokens.add(kind, serve)
	if err != nil {
		return "", err
	}
	return "http://" + s.listen.Addr().String() + "/" + path, nil
}

func (s *streamServer) execURL(r *runtimeapi.ExecRequest, o remotecommand.Options) (string, error) {
	return s.url("exec", func(w http.ResponseWriter, req *http.Request) {
		serveCommand(w, req, o, func(ctx context.Context, in io.Reader, out, errOut io.WriteCloser,
			resize <-chan remotecommand.TerminalSize,
		) error {
			return s.runtime.Exec(ctx, r.GetContainerId(), r.GetCmd(), in, out, errOut, o.TTY, resize)
		})
	})
}

func (s *streamServer) attachURL(r *runtimeapi.AttachRequest, o remotecommand.Options) (string, error) {
	return s.url("attach", func(w http.ResponseWriter, req *http.Request) {
		serveCommand(w, req, o, func(ctx context.Context, in io.Reader, out, errOut io.WriteCloser,
			resize <-chan remotecommand.TerminalSize,
		) error {
			return s.runtime.Attach(ctx, r.GetContainerId(), in, out, errOut, resize)
		})
	})
}

func (s *streamServer) forwardURL(r *runtimeapi.PortForwardRequest) (string, error) {
	o, err := portforward.BuildV4Options(r.GetPort())
	if err != nil {
		return "", field.Invalid("port", "%v", err)
	}
	return s.url("portforward", func(w http.ResponseWriter, req *http.Request) {
		portforward.ServePortForward(w, req, s.runtime, r.GetPodSandboxId(), "", o,
			streamIdle, remotecommand.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
	})
}

// serve returns nil after close.
func (s *streamServer) serve() error {
	if err := s.http.Serve(s.listen); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("stream server: %w", err)
	}
	return nil
}

// close ends all streams. The commands of execs are killed; containers stay.
func (s *streamServer) close() {
	s.stop()
	_ = s.http.Close()
	_ = s.listen.Close()
}

// streams is what the URLs do.
type streams struct {
	sessions Sessions
	ctx      context.Context // of the server
}

var _ portforward.PortForwarder = streams{}

// left is err, or nil if the client went away: no one is there to be told, and the
// stream library would log what every Ctrl-C does as an unhandled error.
func (s streams) left(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil && s.ctx.Err() == nil {
		return nil
	}
	return err
}

// Exec runs a command to its end.
func (s streams) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	sizes, done := terminalSizes(ctx, resize)
	defer done()
	code, err := s.sessions.Exec(ctx, pod.ExecRequest{
		Container: id,
		Command:   cmd,
		TTY:       tty,
		Streams:   pod.Streams{Stdin: in, Stdout: out, Stderr: errOut, Resize: sizes},
	})
	if err != nil {
		return s.left(ctx, err)
	}
	if code != 0 {
		// The stream protocol carries an exit code only in this type.
		return utilexec.CodeExitError{Err: fmt.Errorf("command exited with code %d", code), Code: int(code)}
	}
	return nil
}

// Attach takes from the container, not from the request, whether it has a terminal.
func (s streams) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser,
	resize <-chan remotecommand.TerminalSize,
) error {
	c, err := s.sessions.Container(id)
	if err != nil {
		return err
	}
	sizes, done := terminalSizes(ctx, resize)
	defer done()
	return s.left(ctx, s.sessions.Attach(ctx, c.ID, c.Config.TTY, pod.Streams{Stdin: in, Stdout: out, Stderr: errOut, Resize: sizes}))
}

// PortForward connects stream to a port of the pod.
func (s streams) PortForward(ctx context.Context, podID, _ string, port int32, stream io.ReadWriteCloser) error {
	return s.left(ctx, s.sessions.PortForward(ctx, podID, port, stream))
}

// terminalSizes passes window sizes on in pod's type until in is closed, ctx ends
// or done is called; done waits for the end.
func terminalSizes(ctx context.Context, in <-chan remotecommand.TerminalSize) (sizes <-chan pod.Size, done func()) {
	if in == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan pod.Size)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case size, ok := <-in:
				if !ok {
					return
				}
				select {
				case <-ctx.Done():
					return
				case out <- pod.Size{Width: size.Width, Height: size.Height}:
				}
			}
		}
	})
	return out, func() { cancel(); wg.Wait() }
}
