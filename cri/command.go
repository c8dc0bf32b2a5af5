package cri

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

// exec and attach, the remote command protocol, over WebSocket (websocket.go) and SPDY (spdy.go).
// The stream library speaks it too, but up to version 4 only, and keeps whatever a client sends as
// a terminal's size.

// command is what a stream is for: it copies until the command or the client has ended.
type command func(ctx context.Context, in io.Reader, out, errOut io.WriteCloser, resize <-chan remotecommand.TerminalSize) error

// session is a client that has opened all streams that it was to open.
type session struct {
	in          io.Reader      // or nil
	out, errOut io.WriteCloser // or nil
	resize      io.Reader      // or nil
	status      io.Writer      // how the command ended
	asText      bool           // the status is a sentence, and none means success: before version 4
	leaves      bool           // the end of resize means that the client is gone
	gone        <-chan bool    // closed when it is; or nil
	close       func()
}

// serveCommand runs a command for a client.
func serveCommand(w http.ResponseWriter, r *http.Request, o remotecommand.Options, run command) {
	open := openSPDY
	if wsstream.IsWebSocketRequest(r) {
		open = openWebSocket
	}
	s := open(w, r, o)
	if s == nil {
		return // the client has been told
	}
	defer s.close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var running sync.WaitGroup
	// Nothing else tells that the client is gone while the command prints nothing: it must not go
	// on for no one.
	running.Go(func() {
		select {
		case <-s.gone:
			cancel()
		case <-ctx.Done():
		}
	})
	var resize chan remotecommand.TerminalSize
	if s.resize != nil {
		resize = make(chan remotecommand.TerminalSize)
		running.Go(func() {
			readSizes(ctx, s.resize, resize)
			if s.leaves {
				cancel()
			}
		})
	}
	s.end(run(ctx, s.in, s.out, s.errOut, resize))
	s.close()
	cancel()
	running.Wait()
}

// end tells the client how the command ended.
func (s *session) end(err error) {
	e := ending(err)
	text := []byte(e.Message)
	if !s.asText {
		var jerr error
		if text, jerr = json.Marshal(e); jerr != nil {
			return // cannot happen
		}
	}
	if len(text) > 0 {
		_, _ = s.status.Write(text) // it may have gone
	}
}

// maxSize bounds a terminal's size as JSON, in bytes: a client's endless value must not fill the
// memory.
const maxSize = 1 << 10

// readSizes passes the terminal's sizes on until the stream or ctx ends.
func readSizes(ctx context.Context, from io.Reader, to chan<- remotecommand.TerminalSize) {
	defer close(to)
	limited := &io.LimitedReader{R: from}
	for sizes := json.NewDecoder(limited); ; {
		limited.N = maxSize
		var size remotecommand.TerminalSize
		if sizes.Decode(&size) != nil {
			// What is not a size is no reason to end the command; the end of the stream is.
			_, _ = io.Copy(io.Discard, from)
			return
		}
		select {
		case to <- size:
		case <-ctx.Done():
			return
		}
	}
}

// streamEnd is how a command ended, in the form of the API's Status.
type streamEnd struct {
	Metadata struct{}    `json:"metadata"`
	Status   string      `json:"status"`
	Message  string      `json:"message,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	Details  *endDetails `json:"details,omitempty"`
	Code     int         `json:"code,omitempty"`
}

type endDetails struct {
	Causes []endCause `json:"causes,omitempty"`
}

type endCause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func ending(err error) streamEnd {
	var code utilexec.CodeExitError
	switch {
	case err == nil:
		return streamEnd{Status: "Success"}
	case errors.As(err, &code):
		return streamEnd{
			Status: "Failure", Reason: remotecommand.NonZeroExitCodeReason,
			Message: "command terminated with non-zero exit code: " + code.Error(),
			Details: &endDetails{Causes: []endCause{{string(remotecommand.ExitCodeCauseType), strconv.Itoa(code.Code)}}},
		}
	}
	return streamEnd{
		Status: "Failure", Reason: "InternalError", Code: http.StatusInternalServerError,
		Message: "Internal error occurred: " + err.Error(),
	}
}
