package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/layers"
	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/sock"
)

const (
	// lazyProgram shows layers that are not here yet; its executable is installed next to ours.
	lazyProgram = "coracle-lazy"
	// lazyName is its name in the keeper, and of its directory.
	lazyName = "lazy"
)

// lazyDir is where the program's socket is, below the shim's directory.
func (n *node) lazyDir() string { return filepath.Join(n.config.State, "shim", lazyName) }

func (n *node) newLazyClient() *lazy.Client {
	return lazy.NewClient(func(context.Context) (net.Conn, error) {
		return sock.Dial(n.lazyDir(), lazy.SocketName, "unix")
	}, n.startLazy)
}

// startLazy sees to it that the program runs, and outlives us.
func (n *node) startLazy(ctx context.Context) error {
	if n.shim == nil {
		return fmt.Errorf("start %s: the shim is not there yet", lazyProgram)
	}
	return n.shim.StartCompanion(ctx, client.Companion{
		Name: lazyName, Binary: sibling(lazyProgram), Socket: lazy.SocketName, Env: environment(),
		PID: func(ctx context.Context) (int, error) {
			s, err := n.lazy.Status(ctx)
			return s.PID, err
		},
	})
}

// lazyShown asks the program of a daemon before us, if there was one, what it shows.
func (n *node) lazyShown(ctx context.Context) func(digest.Digest) bool {
	n.lazy = n.newLazyClient()
	shown, err := layers.Shown(ctx, n.lazy)
	if err != nil {
		n.log.Error("layers that are pulled lazily are lost", "err", err)
	}
	return shown
}
