package main

import (
	"context"
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
)

// profileSocket is the name of the socket that serves profiles, in the directory for what a reboot may lose.
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

// serveProfiles serves Go's profiles of this process on listener, which only root can reach, until ctx ends:
//
//	curl --unix-socket /run/coracle/kube/pprof.sock http://kube/debug/pprof/heap >heap
func serveProfiles(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
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

// private has a socket made with the mode 0600: a socket's file gets the mode that its descriptor has when it is
// bound, so that there is no moment when others could connect.
func private(_, _ string, conn syscall.RawConn) error {
	var err error
	if e := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return err
}
