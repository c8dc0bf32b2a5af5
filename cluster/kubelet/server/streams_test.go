package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	streamcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// streams is a runtime's streaming server: a command gets its standard input back with its words in
// front, port 80 answers like an echo server.
type streams struct {
	streaming.Server
}

func newStreams(t *testing.T) *streams {
	s, _ := startStreams(t, (*httptest.Server).Start)
	return s
}

// startStreams starts one with start, which decides between http and https.
func startStreams(t *testing.T, start func(*httptest.Server)) (*streams, *httptest.Server) {
	s := &streams{}
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(w, r) }))
	start(web)
	t.Cleanup(web.Close)
	config := streaming.DefaultConfig
	base, err := url.Parse(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.BaseURL = base
	if s.Server, err = streaming.NewServer(config, s); err != nil {
		t.Fatal(err)
	}
	return s, web
}

func (s *streams) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool,
	_ <-chan streamcommand.TerminalSize,
) error {
	fmt.Fprintf(out, "%s %s tty=%v:", id, strings.Join(cmd, " "), tty)
	if in != nil {
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	if errOut != nil {
		fmt.Fprint(errOut, "oops")
	}
	return nil
}

func (s *streams) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool,
	sizes <-chan streamcommand.TerminalSize,
) error {
	return s.Exec(ctx, id, []string{"attached"}, in, out, errOut, tty, sizes)
}

func (s *streams) PortForward(_ context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	fmt.Fprintf(stream, "%s:%d:", sandbox, port)
	_, err := io.Copy(stream, stream)
	return err
}

func (f *fakeRuntime) Exec(_ context.Context, r *runtimeapi.ExecRequest, _ ...grpc.CallOption) (*runtimeapi.ExecResponse, error) {
	return f.streams.GetExec(r)
}

func (f *fakeRuntime) Attach(_ context.Context, r *runtimeapi.AttachRequest, _ ...grpc.CallOption) (*runtimeapi.AttachResponse, error) {
	return f.streams.GetAttach(r)
}

func (f *fakeRuntime) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest,
	_ ...grpc.CallOption,
) (*runtimeapi.PortForwardResponse, error) {
	return f.streams.GetPortForward(r)
}

func listen(t *testing.T) *rest.Config {
	s, _, rt := newServer(t, nil)
	rt.streams = newStreams(t)
	server := httptest.NewTLSServer(s.Handler())
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func TestExecAndAttach(t *testing.T) {
	config := listen(t)
	for name, dial := range map[string]func(target *url.URL) (remotecommand.Executor, error){
		"SPDY": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(config, "POST", u)
		},
		"WebSocket v5": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(config, "GET", u.String())
		},
		"WebSocket v4": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutorForProtocols(config, "GET", u.String(), "v4.channel.k8s.io")
		},
	} {
		for _, c := range []struct{ path, in, out, errOut string }{
			{"/exec/ns/p/c?command=cat&command=-u&input=1&output=1&error=1", "hello", "c1 cat -u tty=false:hello", "oops"},
			{"/exec/ns/p/u1/c?command=cat&output=1&error=1", "", "c1 cat tty=false:", "oops"},
			{"/attach/ns/p/c?input=1&output=1&error=1", "hi", "c1 attached tty=false:hi", "oops"},
		} {
			if name == "WebSocket v4" && c.in != "" {
				continue // that protocol cannot close standard input
			}
			target, err := url.Parse(config.Host + c.path)
			if err != nil {
				t.Fatal(err)
			}
			executor, err := dial(target)
			if err != nil {
				t.Fatal(err)
			}
			var out, errOut bytes.Buffer
			options := remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut}
			if c.in != "" {
				options.Stdin = strings.NewReader(c.in)
			}
			if err := executor.StreamWithContext(t.Context(), options); err != nil {
				t.Errorf("%s %s: %v", name, c.path, err)
			}
			if out.String() != c.out || errOut.String() != c.errOut {
				t.Errorf("%s %s: got %q and %q", name, c.path, out.String(), errOut.String())
			}
		}
	}
}

func TestPortForward(t *testing.T) {
	config := listen(t)
	target, err := url.Parse(config.Host + "/portForward/ns/p")
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(target, config)
	if err != nil {
		t.Fatal(err)
	}
	for name, start := range map[string]func(stop, ready chan struct{}) (*portforward.PortForwarder, error){
		"SPDY": func(stop, ready chan struct{}) (*portforward.PortForwarder, error) {
			return portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", target), []string{"0:80"}, stop, ready,
				io.Discard, io.Discard)
		},
		"WebSocket": func(stop, ready chan struct{}) (*portforward.PortForwarder, error) {
			return portforward.New(tunnel, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
		},
	} {
		stop, ready := make(chan struct{}), make(chan struct{})
		forwarder, err := start(stop, ready)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- forwarder.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatal(name, err)
		}
		ports, err := forwarder.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		if err != nil || string(answer) != "s1:80:ping" {
			t.Errorf("%s: %q %v", name, answer, err)
		}
		conn.Close()
		close(stop)
		if err := <-done; err != nil {
			t.Error(name, err)
		}
	}
}

func TestWantedPorts(t *testing.T) {
	for query, want := range map[string]string{
		"port=80": "[80]", "port=80,81&port=82": "[80 81 82]", "": `query parameter "port" is required`,
		"port=":                                  `query parameter "port" cannot be empty`,
		"port=0":                                 `port "0" must be > 0`,
		"port=70000":                             `unable to parse "70000" as a port: strconv.ParseUint: parsing "70000": value out of range`,
		"port=" + strings.Repeat("1,", 64) + "1": "65 ports are wanted: at most 64 may be forwarded at a time",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		ports, err := wantedPorts(values["port"])
		got := fmt.Sprint(ports)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
	}
}

// What the API server makes of the API's options is what is understood here.
func TestQueryOfTheAPI(t *testing.T) {
	values, err := scheme.ParameterCodec.EncodeParameters(&v1.PodLogOptions{
		Follow: true, Timestamps: true, TailLines: new(int64),
		Container: "c",
	}, v1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := logOptions(values); err != nil || !got.Follow || !got.Timestamps || got.Previous || *got.TailLines != 0 ||
		got.LimitBytes != nil {
		t.Error(got, err)
	}
}
