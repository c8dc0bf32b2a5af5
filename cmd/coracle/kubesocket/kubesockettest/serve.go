// Package kubesockettest stands in for the cluster process in tests of what asks it.
package kubesockettest

import (
	"net"
	"net/http"
	"testing"
	"time"
)

// Serve answers on a socket with handlers, by path, until the test ends.
func Serve(t testing.TB, socket string, handlers map[string]http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for path, h := range handlers {
		mux.HandleFunc(path, h)
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
}
