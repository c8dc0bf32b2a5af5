package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/health"
)

// profileSocket is the name of the socket that serves profiles, in the directory for what a reboot
// may lose.
const profileSocket = "pprof.sock"

// listenForProfiles opens the socket that serves profiles, in dir.
func listenForProfiles(ctx context.Context, dir string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("profiles: %w", err)
	}
	path := filepath.Join(dir, profileSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // a killed process leaves it
		return nil, fmt.Errorf("profiles: %w", err)
	}
	listener, err := (&net.ListenConfig{Control: private}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("profiles: %w", err)
	}
	return listener, nil
}

// serveProfiles serves Go's profiles of this process on listener, which only root can reach, until
// ctx ends, and what more has, by path: what `coracle status` and `coracle why` ask.
//
//	curl --unix-socket /run/coracle/kube/pprof.sock http://kube/debug/pprof/heap >heap
func serveProfiles(ctx context.Context, listener net.Listener, more map[string]http.Handler) error {
	mux := http.NewServeMux()
	for path, handler := range more {
		mux.Handle(path, handler)
	}
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("profiles: %w", err)
	}
	return nil
}

// healthPath is where the states of the parts of this process are, as JSON.
const healthPath = "/healthz/parts"

// healthPatience is how long an answer waits for parts that say nothing, on however slow a machine:
// less than `coracle up` waits, so that it learns what the others say.
const healthPatience = 28 * time.Second

// showHealth answers with the states of a board, with ?wait when each part has said whether it
// works, or healthPatience is over.
func showHealth(board *health.Board) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			ctx, cancel := context.WithTimeout(r.Context(), healthPatience)
			defer cancel()
			board.Wait(ctx)
		}
		answerJSON(w, board.States())
	})
}

// answerJSON writes an answer; what is wrong with the connection is the client's to notice.
func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// private has a socket made with the mode 0600: a socket's file gets the mode that its descriptor
// has when it is bound, so that there is no moment when others could connect.
func private(_, _ string, conn syscall.RawConn) error {
	var err error
	if e := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return err
}
