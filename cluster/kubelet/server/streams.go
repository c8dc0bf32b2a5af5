package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// found returns the pod that the path names, or answers that there is none.
func (s *Server) found(w http.ResponseWriter, r *http.Request) (*v1.Pod, bool) {
	pod, ok := s.host.Pod(r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid")))
	if !ok {
		fail(w, http.StatusNotFound, "pod does not exist")
	}
	return pod, ok
}

// wanted are the streams that a client asks for.
type wanted struct{ stdin, stdout, stderr, tty bool }

func wantedStreams(query url.Values) (wanted, error) {
	on := func(name string) bool { return query.Get(name) == "1" }
	o := wanted{stdin: on("input"), stdout: on("output"), stderr: on("error"), tty: on("tty")}
	if o.tty {
		o.stderr = false // a terminal has one output
	}
	if !o.stdin && !o.stdout && !o.stderr {
		return o, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	s.stream(w, r, func(id string, o wanted) (string, error) {
		answer, err := s.runtime.Runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
			ContainerId: id, Cmd: query["command"], Tty: o.tty, Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr,
		})
		return answer.GetUrl(), err
	})
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(id string, o wanted) (string, error) {
		answer, err := s.runtime.Runtime.Attach(r.Context(), &runtimeapi.AttachRequest{
			ContainerId: id, Tty: o.tty, Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr,
		})
		return answer.GetUrl(), err
	})
}

// stream passes a client on to where the runtime serves the streams of a container.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, ask func(id string, o wanted) (string, error)) {
	o, err := wantedStreams(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	pod, ok := s.found(w, r)
	if !ok {
		return
	}
	id, err := s.host.ContainerID(pod, r.PathValue("container"))
	var at string
	if err == nil {
		at, err = ask(id, o)
	}
	target, err := streamURL(at, err)
	if err != nil {
		_ = streaming.WriteError(err, w)
		return
	}
	target, way := withExitStatus(target, s.streamTLS)
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		// Runtimes speak SPDY for certain; the newest WebSocket protocol is turned into that here.
		translator.NewStreamTranslatorHandler(target, way, 0, translator.Options{
			Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr, Tty: o.tty,
		}).ServeHTTP(w, r)
		return
	}
	s.passOn(target, way).ServeHTTP(w, r)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	tunnel := wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	var ports []int32
	if !tunnel && wsstream.IsWebSocketRequest(r) {
		var err error
		if ports, err = wantedPorts(r.URL.Query()["port"]); err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	pod, ok := s.found(w, r)
	if !ok {
		return
	}
	id, err := s.host.SandboxID(pod)
	var at string
	if err == nil {
		var answer *runtimeapi.PortForwardResponse
		answer, err = s.runtime.Runtime.PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: id, Port: ports})
		at = answer.GetUrl()
	}
	target, err := streamURL(at, err)
	if err != nil {
		_ = streaming.WriteError(err, w)
		return
	}
	handler := http.Handler(s.passOn(target, nil))
	if tunnel {
		handler = translator.NewTunnelingHandler(handler)
	}
	handler.ServeHTTP(w, r)
}

func streamURL(at string, err error) (*url.URL, error) {
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(at)
	if err != nil || target.Host == "" {
		return nil, fmt.Errorf("the runtime gave out %q, which is no URL to stream from", at)
	}
	return target, nil
}

// maxPorts bounds how many ports one WebSocket forwards.
const maxPorts = 64

// wantedPorts reads the ports of the WebSocket protocol, which has them in the query.
func wantedPorts(values []string) ([]int32, error) {
	if len(values) == 0 {
		return nil, errors.New(`query parameter "port" is required`)
	}
	var ports []int32
	for _, value := range values {
		if value == "" {
			return nil, errors.New(`query parameter "port" cannot be empty`)
		}
		for text := range strings.SplitSeq(value, ",") {
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("unable to parse %q as a port: %w", value, err)
			}
			if port < 1 {
				return nil, fmt.Errorf("port %q must be > 0", value)
			}
			ports = append(ports, int32(port))
		}
		if len(ports) > maxPorts {
			return nil, fmt.Errorf("%d ports are wanted: at most %d may be forwarded at a time", len(ports), maxPorts)
		}
	}
	return ports, nil
}

// passOn joins the client's connection, once upgraded, with one to target, made by way.
func (s *Server) passOn(target *url.URL, way http.RoundTripper) *proxy.UpgradeAwareHandler {
	return proxy.NewUpgradeAwareHandler(target, way, false, true, responder{s.opts.Log})
}

type responder struct{ log *slog.Logger }

// Error implements proxy.ErrorResponder.
func (p responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	p.log.Warn("kubelet API: stream not passed on", "path", r.URL.Path, "err", err)
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// run runs a command to its end and answers with what it wrote.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	pod, ok := s.found(w, r)
	if !ok {
		return
	}
	id, err := s.host.ContainerID(pod, r.PathValue("container"))
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	command := strings.Split(r.URL.Query().Get("cmd"), " ")
	answer, err := s.runtime.Runtime.ExecSync(r.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command})
	if err == nil && answer.ExitCode != 0 {
		err = fmt.Errorf("command '%s' exited with %d: %s", strings.Join(command, " "), answer.ExitCode, answer.Stderr)
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json") // as upstream says, whatever the command wrote
	_, _ = w.Write(slices.Concat(answer.Stdout, answer.Stderr))
}
