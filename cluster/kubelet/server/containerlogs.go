package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/apis/core/v1/validation"

	"github.com/coracle-project/coracle/cluster/kubelet/logs"
)

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	opts, err := logOptions(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, `{"message": "Unable to decode query."}`)
		return
	}
	if errs := validation.ValidatePodLogOptions(opts); len(errs) > 0 {
		fail(w, http.StatusUnprocessableEntity, `{"message": "Invalid request."}`)
		return
	}
	name, container := r.PathValue("pod"), r.PathValue("container")
	pod, ok := s.host.Pod(r.PathValue("namespace"), name, "")
	if !ok {
		fail(w, http.StatusNotFound, fmt.Sprintf("pod %q does not exist", name))
		return
	}
	if !hasContainer(pod, container) {
		fail(w, http.StatusNotFound, fmt.Sprintf("container %q not found in pod %q", container, name))
		return
	}
	id, err := logSource(pod, container, opts.Previous)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	about, err := s.runtime.Runtime.ContainerStatus(r.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("unable to retrieve container logs for %v", id))
		return
	}
	read := logs.OptionsOf(opts, time.Now())
	read.Log = s.opts.Log
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if opts.Follow {
		read.Ended = s.whenEnded(ctx, id)
	}
	out := newLogWriter(w)
	var stdout, stderr io.Writer = out, out
	switch {
	case opts.Stream == nil:
	case *opts.Stream == v1.LogStreamStdout:
		stderr = nil
	case *opts.Stream == v1.LogStreamStderr:
		stdout = nil
	}
	if opts.Follow {
		// The client learns at once that it is served, though the container may be silent for long.
		if out.Flush() != nil {
			return
		}
	}
	err = logs.Read(ctx, about.GetStatus().GetLogPath(), read, stdout, stderr)
	if err != nil && !out.begun && r.Context().Err() == nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	_ = out.Flush()
}

// checkEvery is how often the runtime is asked whether a container whose log is followed still
// runs.
const checkEvery = time.Second

// whenEnded returns a channel that is closed when a container does not run any more, or ctx ends.
func (s *Server) whenEnded(ctx context.Context, id string) <-chan struct{} {
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		tick := time.NewTicker(checkEvery)
		defer tick.Stop()
		for s.running(ctx, id) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ended
}

// running says whether a container runs. While the runtime is away it is taken to run on.
func (s *Server) running(ctx context.Context, id string) bool {
	about, err := s.runtime.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		s.opts.Log.Debug("cannot tell whether a container runs whose log is followed", "container", id, "err", err)
	}
	return status.Code(err) == codes.Unavailable ||
		err == nil && about.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// logWriter holds back a log until there is a good deal of it, or nothing more for now.
type logWriter struct {
	*bufio.Writer
	response *http.ResponseController
	// begun says that the answer's head has been sent.
	begun bool
}

func newLogWriter(w http.ResponseWriter) *logWriter {
	l := &logWriter{response: http.NewResponseController(w)}
	l.Writer = bufio.NewWriterSize(writerFunc(func(p []byte) (int, error) {
		if !l.begun {
			l.begun = true
			w.Header().Set("Content-Type", "text/plain")
		}
		return w.Write(p)
	}), 32<<10)
	return l
}

// Flush sends what was held back.
func (l *logWriter) Flush() error {
	if err := l.Writer.Flush(); err != nil {
		return err
	}
	l.begun = true
	return l.response.Flush()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func hasContainer(pod *v1.Pod, name string) bool {
	return !podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		return c.Name != name
	})
}

// logOptions reads the query as the API does: a flag is on unless it is absent, "false" or "0".
func logOptions(query url.Values) (*v1.PodLogOptions, error) {
	opts := &v1.PodLogOptions{}
	var errs []error
	flag := func(name string) bool {
		values, given := query[name]
		return given && (len(values) == 0 || !strings.EqualFold(values[0], "false") && values[0] != "0")
	}
	number := func(name string) *int64 {
		text := query.Get(name)
		if text == "" {
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		errs = append(errs, err)
		return &n
	}
	opts.Follow, opts.Previous, opts.Timestamps = flag("follow"), flag("previous"), flag("timestamps")
	opts.SinceSeconds, opts.TailLines, opts.LimitBytes = number("sinceSeconds"), number("tailLines"), number("limitBytes")
	switch tail := query.Get("tail"); tail { // an older name
	case "":
	case "all":
		opts.TailLines = nil
	default:
		opts.TailLines = number("tail")
	}
	if text := query.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		errs = append(errs, err)
		opts.SinceTime = &metav1.Time{Time: at}
	}
	if stream := query.Get("stream"); stream != "" {
		opts.Stream = &stream
	}
	return opts, errors.Join(errs...)
}

// logSource is the id of the container instance whose log is wanted, or an error that says why
// there is none.
func logSource(pod *v1.Pod, container string, previous bool) (string, error) {
	fault := func(format string, more ...any) error {
		return fmt.Errorf("container %q in pod %q "+format, append([]any{container, pod.Name}, more...)...)
	}
	var cs *v1.ContainerStatus
	for _, list := range [][]v1.ContainerStatus{
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
		pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == container && cs == nil {
				cs = &list[i]
			}
		}
	}
	if cs == nil {
		return "", fault("is not available")
	}
	var last string
	if t := cs.LastTerminationState.Terminated; t != nil {
		last = t.ContainerID
	}
	id := ""
	switch state := cs.State; {
	case previous:
		if last == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", container, pod.Name)
		}
		id = last
	case state.Running != nil:
		id = cs.ContainerID
	case state.Terminated != nil:
		// Without an id the last start failed; what ran before it has a log.
		if id = state.Terminated.ContainerID; id == "" {
			id = last
		}
		if id == "" {
			return "", fault("is terminated")
		}
	case cs.LastTerminationState.Terminated != nil:
		if id = last; id == "" {
			return "", fault("is terminated")
		}
	case state.Waiting != nil:
		switch reason := state.Waiting.Reason; reason {
		case "ErrImagePull":
			return "", fault("is waiting to start: image can't be pulled")
		case "ImagePullBackOff":
			return "", fault("is waiting to start: trying and failing to pull image")
		default:
			return "", fault("is waiting to start: %v", reason)
		}
	default:
		return "", fault("is waiting to start - no logs yet")
	}
	if _, plain, ok := strings.Cut(id, "://"); ok {
		id = plain
	}
	return id, nil
}
