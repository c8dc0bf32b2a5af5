package layers

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/snapshot"
)

// answerTime is how long a coracle-lazy that was just killed may take to run again.
const answerTime = 10 * time.Second

// Lazy has coracle-lazy show layers that are not downloaded yet, in directories of the snapshot
// store.
type Lazy struct {
	Snapshots *snapshot.Store
	Client    *lazy.Client
	// Timeout is how long a read of a file may wait for the registry.
	Timeout func() time.Duration
}

var _ image.LazyStore = (*Lazy)(nil)

// ShowLazy has a layer shown in a directory of the snapshot store.
func (l *Lazy) ShowLazy(ctx context.Context, layer image.LazyLayer) error {
	dir, err := l.Snapshots.BeginLazy(layer.DiffID)
	if err != nil {
		return err
	}
	err = l.show(ctx, dir, layer)
	if err == nil {
		err = l.Snapshots.CommitLazy(layer.DiffID, layer.Blob.Digest, layer.TOC)
	}
	if err != nil {
		return errors.Join(err, l.Snapshots.AbortLazy(layer.DiffID))
	}
	return nil
}

// show gives up what a coracle-lazy that hangs does not answer: the two reads that it makes end
// themselves after ProgressTimeout without a byte.
func (l *Lazy) show(ctx context.Context, dir string, layer image.LazyLayer) error {
	ctx, cancel := context.WithTimeout(ctx, 2*layer.Hosts.ProgressTimeout+answerTime)
	defer cancel()
	return l.Client.Show(ctx, lazy.Layer{
		DiffID: layer.DiffID, Blob: layer.Blob.Digest, Size: layer.Blob.Size, TOC: layer.TOC, Image: layer.Image,
		Domain: layer.Domain, Path: layer.Path, Auth: layer.Auth, Hosts: layer.Hosts, Dir: dir, Timeout: l.Timeout(),
	})
}

// LazySource is the blob that a layer is shown from, and the digest of its table of contents.
func (l *Lazy) LazySource(diffID digest.Digest) (blob, toc digest.Digest) {
	return l.Snapshots.LazySource(diffID)
}

// AwaitLazy returns the blob of a layer when all of it is here.
func (l *Lazy) AwaitLazy(ctx context.Context, diffID digest.Digest) (*os.File, error) {
	if err := l.Client.Await(ctx, diffID); err != nil {
		return nil, err
	}
	return l.Snapshots.OpenLazyBlob(diffID)
}

// LazyUnpacked ends the mount of a layer that is unpacked, or gone.
func (l *Lazy) LazyUnpacked(ctx context.Context, diffID digest.Digest) error {
	err := l.Client.Unpacked(ctx, diffID, l.Snapshots.LayerDir(diffID))
	if err != nil && !errors.Is(err, lazy.ErrNotShown) && !errors.Is(err, lazy.ErrGone) {
		return err
	}
	return l.Snapshots.EndLazy(diffID)
}

// Shown asks a coracle-lazy that an earlier daemon has started, if there is one, which layers it
// shows. On error it may be none.
func Shown(ctx context.Context, c *lazy.Client) (func(digest.Digest) bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s, err := c.Status(ctx)
	if errors.Is(err, lazy.ErrGone) {
		err = nil
	}
	shown := make(map[digest.Digest]bool, len(s.Layers))
	for _, d := range s.Layers {
		shown[d] = true
	}
	return func(d digest.Digest) bool { return shown[d] }, err
}

// Keep has start keep a coracle-lazy alive that runs, and tells it what was unpacked while no
// daemon ran.
func (l *Lazy) Keep(ctx context.Context, start func(context.Context) error) error {
	return keeping{ask: l.Client.Status, keep: start, whole: l.Snapshots.HasLayer, unpacked: l.LazyUnpacked}.run(ctx)
}

// keeping is Keep's calls.
type keeping struct {
	ask      func(context.Context) (lazy.Status, error)
	keep     func(context.Context) error
	whole    func(digest.Digest) bool
	unpacked func(context.Context, digest.Digest) error
}

func (k keeping) run(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s, err := k.ask(asking)
	if errors.Is(err, lazy.ErrGone) {
		return nil
	}
	// A process that does not answer (it is stopped, or the machine is busy) may have layers of
	// containers: it is kept alive.
	telling, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err = errors.Join(err, k.keep(telling))
	for _, d := range s.Layers {
		if k.whole(d) {
			err = errors.Join(err, k.unpacked(telling, d))
		}
	}
	return err
}
