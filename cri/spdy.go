package cri

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// The remote command protocol over SPDY: the client opens one stream for each of stdin, stdout,
// stderr, the error and, with a terminal and since version 3, the terminal's sizes. A client that
// asks for a terminal and does not act on it opens one for stderr in place of the sizes. The
// kubelet counts streams and so serves it, and so must we; its stderr stays empty.

// spdyStreams are those that a client has opened so far.
type spdyStreams struct {
	wanted map[string]bool
	stop   context.Context
	all    chan struct{} // closed when all are there, and their answers on the way

	mu    sync.Mutex
	got   map[string]httpstream.Stream
	ready int
	done  bool // all is closed
}

// openSPDY returns nil if the client has been told that it cannot be, or has not opened its streams
// in time.
func openSPDY(w http.ResponseWriter, r *http.Request, o remotecommand.Options) *session {
	protocol, err := httpstream.Handshake(r, w, remotecommand.SupportedStreamingProtocols)
	if err != nil {
		return nil
	}
	sized := protocol == remotecommand.StreamProtocolV4Name || protocol == remotecommand.StreamProtocolV3Name
	ctx, cancel := context.WithTimeout(r.Context(), remotecommand.DefaultStreamCreationTimeout)
	defer cancel()
	s := &spdyStreams{
		wanted: map[string]bool{
			remotecommand.StreamTypeError: true, remotecommand.StreamTypeStdin: o.Stdin, remotecommand.StreamTypeStdout: o.Stdout,
			remotecommand.StreamTypeStderr: o.Stderr, remotecommand.StreamTypeResize: o.TTY && sized,
		},
		stop: ctx, all: make(chan struct{}), got: map[string]httpstream.Stream{},
	}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, s.opened)
	if conn == nil {
		return nil
	}
	conn.SetIdleTimeout(streamIdle)
	select {
	case <-s.all:
	case <-conn.CloseChan():
		return nil
	case <-ctx.Done():
		_ = conn.Close()
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &session{
		status: s.got[remotecommand.StreamTypeError], asText: protocol != remotecommand.StreamProtocolV4Name,
		gone: conn.CloseChan(), close: func() { _ = conn.Close() },
	}
	// A nil stream would not be a nil interface.
	if in := s.got[remotecommand.StreamTypeStdin]; in != nil {
		out.in = in
	}
	if to := s.got[remotecommand.StreamTypeStdout]; to != nil {
		out.out = to
	}
	if to := s.got[remotecommand.StreamTypeStderr]; to != nil && o.Stderr {
		out.errOut = to
	}
	if from := s.got[remotecommand.StreamTypeResize]; from != nil {
		out.resize = from
	}
	return out
}

// opened takes a stream that the client has opened; with an error it is reset. replied is closed
// when the answer is on its way: before that the connection must not be closed.
func (s *spdyStreams) opened(stream httpstream.Stream, replied <-chan struct{}) error {
	kind := stream.Headers().Get(remotecommand.StreamType)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.wanted[kind] && !s.insteadOfSizes(kind):
		return fmt.Errorf("stream %q was not asked for", kind)
	case s.got[kind] != nil:
		return fmt.Errorf("stream %q is open already", kind)
	}
	s.got[kind] = stream
	go func() {
		select {
		case <-replied:
			s.answered()
		case <-s.stop.Done():
		}
	}()
	return nil
}

// insteadOfSizes says whether a client may open a stream where one for the terminal's sizes is
// expected.
func (s *spdyStreams) insteadOfSizes(kind string) bool {
	return kind == remotecommand.StreamTypeStderr && s.wanted[remotecommand.StreamTypeResize]
}

func (s *spdyStreams) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready++
	for kind, wanted := range s.wanted {
		if kind == remotecommand.StreamTypeResize && s.got[remotecommand.StreamTypeStderr] != nil {
			continue
		}
		if wanted && s.got[kind] == nil {
			return
		}
	}
	if s.ready == len(s.got) && !s.done {
		s.done = true
		close(s.all)
	}
}
