package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"

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
	listener, err := health.Listen(ctx, filepath.Join(dir, profileSocket))
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
	return health.Serve(ctx, listener, mux)
}

// answerJSON writes an answer; what is wrong with the connection is the client's to notice.
func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}
