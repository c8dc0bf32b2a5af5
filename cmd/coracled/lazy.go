package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/sock"
	"github.com/coracle-project/coracle/snapshot"
)

const (
	// lazyProgram shows layers that are not here yet; its executable is installed beside ours.
	lazyProgram = "coracle-lazy"
	// lazyName is its name in the keeper, and of its directory.
	lazyName = "lazy"
	// lazyAnswer is how long one that was just killed may take to be there again.
	lazyAnswer = 10 * time.Second
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
		Name: lazyName, Binary: beside(lazyProgram), Socket: lazy.SocketName, Env: environment(),
		PID: func(ctx context.Context) (int, error) {
			s, err := n.lazy.Status(ctx)
			return s.PID, err
		},
	})
}

// lazyShown asks the program of a daemon before us, if there was one, what it shows.
func (n *node) lazyShown(ctx context.Context) func(digest.Digest) bool {
	n.lazy = n.newLazyClient()
	ctx, cancel := context.WithTimeout(ctx, lazyAnswer)
	defer cancel()
	s, err := n.lazy.Status(ctx)
	if err != nil && !errors.Is(err, lazy.ErrGone) {
		n.log.Error("layers that are pulled lazily are lost", "error", err)
	}
	shown := make(map[digest.Digest]bool, len(s.Layers))
	for _, d := range s.Layers {
		shown[d] = true
	}
	return func(d digest.Digest) bool { return shown[d] }
}

// keepLazy goes on keeping a program alive that runs, and tells it what was unpacked while no one
// could.
func (n *node) keepLazy(ctx context.Context) {
	k := lazyKeeping{ask: n.lazy.Status, keep: n.startLazy, whole: n.snapshots.HasLayer, unpacked: n.lazyLayers().LazyUnpacked}
	if err := k.run(ctx); err != nil {
		n.log.Error("layers that were pulled lazily may be lost with their process", "error", err)
	}
}

// lazyKeeping is keepLazy's calls.
type lazyKeeping struct {
	ask      func(context.Context) (lazy.Status, error)
	keep     func(context.Context) error
	whole    func(digest.Digest) bool
	unpacked func(context.Context, digest.Digest) error
}

func (k lazyKeeping) run(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, lazyAnswer)
	defer cancel()
	s, err := k.ask(asking)
	if errors.Is(err, lazy.ErrGone) {
		return nil
	}
	// One that does not answer, since it is stopped or the machine has much to do, may have layers of containers: it is
	// kept alive all the same.
	telling, cancel := context.WithTimeout(ctx, lazyAnswer)
	defer cancel()
	err = errors.Join(err, k.keep(telling))
	for _, d := range s.Layers {
		if k.whole(d) {
			err = errors.Join(err, k.unpacked(telling, d))
		}
	}
	return err
}

func (n *node) lazyLayers() lazyLayers {
	return lazyLayers{n.snapshots, n.lazy, func() time.Duration { return n.live.Load().config.Image.LazyTimeout() }}
}

// lazyLayers puts together what image/ wants: the program shows layers, in directories of the
// snapshot store.
type lazyLayers struct {
	snapshots *snapshot.Store
	client    *lazy.Client
	timeout   func() time.Duration
}

var _ image.LazyStore = lazyLayers{}

func (s lazyLayers) ShowLazy(ctx context.Context, l image.LazyLayer) error {
	dir, err := s.snapshots.BeginLazy(l.DiffID)
	if err != nil {
		return err
	}
	err = s.client.Show(ctx, lazy.Layer{
		DiffID: l.DiffID, Blob: l.Blob.Digest, Size: l.Blob.Size, TOC: l.TOC, Image: l.Image,
		Domain: l.Domain, Path: l.Path, Auth: l.Auth, Hosts: l.Hosts, Dir: dir, Timeout: s.timeout(),
	})
	if err == nil {
		err = s.snapshots.CommitLazy(l.DiffID, l.Blob.Digest)
	}
	if err != nil {
		return errors.Join(err, s.snapshots.AbortLazy(l.DiffID))
	}
	return nil
}

func (s lazyLayers) LazyBlob(diffID digest.Digest) digest.Digest { return s.snapshots.LazyBlob(diffID) }

func (s lazyLayers) AwaitLazy(ctx context.Context, diffID digest.Digest) (*os.File, error) {
	if err := s.client.Await(ctx, diffID); err != nil {
		return nil, err
	}
	return s.snapshots.OpenLazyBlob(diffID)
}

func (s lazyLayers) LazyUnpacked(ctx context.Context, diffID digest.Digest) error {
	err := s.client.Unpacked(ctx, diffID, s.snapshots.LayerDir(diffID))
	if err != nil && !errors.Is(err, lazy.ErrNotShown) && !errors.Is(err, lazy.ErrGone) {
		return err
	}
	return s.snapshots.EndLazy(diffID)
}
