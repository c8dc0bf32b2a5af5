package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// pullKey is what makes two pulls the same. Credentials are a part of it: a pull
// without them must not succeed because another one has them.
type pullKey struct {
	name name
	auth Auth
}

// Pull fetches an image. When it returns, the image survives a reset of the machine.
// A pull of the same reference with the same credentials that is under way is
// joined; it is cancelled when nobody waits for it any more, and then, as after
// any error, nothing of it is left.
func (s *Store) Pull(ctx context.Context, ref string, opts PullOptions) (Image, error) {
	n, err := parseName(ref)
	if err != nil {
		return Image{}, err
	}
	if err := s.begin(); err != nil {
		return Image{}, err
	}
	defer s.wg.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errClosed) })()

	key := pullKey{n, opts.Auth}
	m, stop := s.watch(key, opts.Progress)
	defer stop()
	img, _, err := s.pulls.do(ctx, key, func(ctx context.Context) (Image, error) {
		return s.pull(ctx, n, opts.Auth, m)
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
			err = cause
		}
		return Image{}, fmt.Errorf("pull %s: %w", n, err)
	}
	return img, nil
}

func (s *Store) pull(ctx context.Context, n name, a Auth, m *meter) (Image, error) {
	src := s.newSource(n, a)
	top, data, err := src.top(ctx)
	if err != nil {
		return Image{}, err
	}
	c, err := resolve(ctx, top, data, src.read)
	if err != nil {
		return Image{}, err
	}
	if err := fault.At(ctx, "image.pull.resolved"); err != nil {
		return Image{}, err
	}
	pins := append(c.blobs(), c.image.RootFS.DiffIDs...)
	if err := s.pin(ctx, pins); err != nil {
		return Image{}, err
	}
	img, err := s.fetch(ctx, src, c, m)
	return img, errors.Join(err, s.settle(ctx, pins, err != nil))
}

// settle ends a pull: what it held is named by the index now, or is garbage.
func (s *Store) settle(ctx context.Context, pins []digest.Digest, failed bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := s.unpin(ctx, pins); err != nil {
		return err
	}
	if !failed {
		return nil
	}
	return s.GC(ctx)
}

// fetch brings everything that the image consists of into the store and names it.
func (s *Store) fetch(ctx context.Context, src *source, c *content, m *meter) (Image, error) {
	m.expect(c.size())
	if err := s.checkSpace(c); err != nil {
		return Image{}, err
	}
	for _, d := range slices.Sorted(maps.Keys(c.documents)) {
		if err := s.layout.put(d, c.documents[d]); err != nil {
			return Image{}, fmt.Errorf("store blob %s: %w", d, err)
		}
		s.usage.add(d, int64(len(c.documents[d])))
	}
	m.add(c.config.Size)
	c.forget()
	g, gctx := errgroup.WithContext(ctx)
	for i, l := range c.layers {
		g.Go(func() error { return s.ensureLayer(gctx, src, l, c.image.RootFS.DiffIDs[i], m) })
	}
	if err := g.Wait(); err != nil {
		return Image{}, err
	}
	if err := s.disks.sync(); err != nil {
		return Image{}, err
	}
	if err := fault.At(ctx, "image.pull.synced"); err != nil {
		return Image{}, err
	}
	img, err := s.commit(named{name: src.name, pulled: time.Now(), content: c})
	if err != nil {
		return Image{}, err
	}
	return img, fault.At(ctx, "image.pull.indexed")
}

// checkSpace refuses a pull that cannot fit: at least the blobs have to, and unpacked
// they take no less.
func (s *Store) checkSpace(c *content) error {
	var need int64
	for i, l := range c.layers {
		if !s.layout.has(l) {
			need += l.Size
		}
		if !s.cfg.Layers.HasLayer(c.image.RootFS.DiffIDs[i]) {
			need += l.Size
		}
	}
	free, err := s.layout.free()
	if err != nil {
		return err
	}
	if need > 0 && need+s.cfg.Layer.MinFree > free {
		return fmt.Errorf("image needs at least %d bytes, %s has %d left and keeps %d free: %w", need, s.layout.root, free, s.cfg.Layer.MinFree, unix.ENOSPC)
	}
	return nil
}
