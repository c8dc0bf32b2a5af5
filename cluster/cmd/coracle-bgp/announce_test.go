package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/bgp/routes"
	"github.com/coracle-project/coracle/cluster/bgp/speaker"
)

// announcer has a directory, and these peers.
func announcer(t *testing.T, peers ...string) (*announcing, string) {
	t.Helper()
	all, err := speaker.Peers(peers)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "bgp")
	a := newAnnouncing(speaker.Options{AS: 64512, Peers: all, Log: slog.New(slog.DiscardHandler)})
	if err := a.open(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	return a, filepath.Join(dir, routes.File)
}

func writeRoutes(t *testing.T, path string) {
	t.Helper()
	r := routes.New([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, []netip.Prefix{netip.MustParsePrefix("10.85.0.0/24")}, nil)
	data, err := r.Encode()
	if err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A process that cannot announce ends, so that the supervisor starts it again.
func TestFailureEndsTheProcess(t *testing.T) {
	a, file := announcer(t, "127.0.0.1 as=64500 port=9")
	a.options.Peers = append(a.options.Peers, a.options.Peers[0]) // GoBGP refuses it
	writeRoutes(t, file)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := a.run(ctx)
	if ctx.Err() != nil {
		t.Error("it has not ended by itself")
	}
	if err == nil || !strings.Contains(err.Error(), "peer 127.0.0.1: ") {
		t.Errorf("%v", err)
	}
}

// A file that cannot be opened changes nothing, and is opened again.
func TestFileThatCannotBeOpened(t *testing.T) {
	a, file := announcer(t, "127.0.0.1 as=64500 port=9")
	if err := os.Symlink("/outside", file); err != nil {
		t.Fatal(err)
	}
	later, err := a.read(t.Context())
	state := a.board.States()[0]
	if err != nil || later == nil || state.Healthy || !strings.Contains(state.Message, routes.File) {
		t.Errorf("%v, again: %t, %+v", err, later != nil, state)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	writeRoutes(t, file)
	later, err = a.read(t.Context())
	if state := a.board.States()[0]; err != nil || later != nil || !state.Healthy {
		t.Errorf("%v, again: %t, %+v", err, later != nil, state)
	}
	if err := a.end(false); err != nil {
		t.Error(err)
	}
}
