package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
)

// pullKey is what makes two pulls the same. Credentials are a part of it: a pull
// without them must not succeed because another one has them.
type pullKey struct {
	name reference.Name
	auth Auth
}

// Pull fetches an image. When it returns, the image survives a reset of the machine.
// A pull of the same reference with the same credentials that is under way is
// joined; it is cancelled when no one waits for it any more, and then, as after
// any error, nothing of it is left.
func (s *Store) Pull(ctx context.Context, ref string, opts PullOptions) (Image, error) {
	n, err := s.cfg.short().Parse(ref)
	if err != nil {
		return Image{}, err
	}
	if reference.IsShort(ref) && n.Domain != reference.DockerHub {
		// Whoever chose the credentials took the name for one of Docker Hub's, as the
		// kubelet does: they are not for another registry.
		opts.Auth = Auth{}
	}
	if err := s.begin(); err != nil {
		return Image{}, err
	}
	defer s.wg.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errClosed) })()

	key := pullKey{n, opts.Auth}
	m, stop := s.watch(key, &watcher{opts.Progress, opts.Layer})
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

func (s *Store) pull(ctx context.Context, n reference.Name, a Auth, m *meter) (Image, error) {
	src, err := s.registries.Load().Repository(n.Domain, n.Path, a)
	if err != nil {
		return Image{}, err
	}
	top, data, err := fetchTop(ctx, src, n)
	if err != nil {
		return Image{}, err
	}
	c, err := resolve(ctx, top, data, s.stored(src.Fetch))
	if err != nil {
		return Image{}, err
	}
	if err := s.checkTrust(ctx, src, c); err != nil {
		return Image{}, err
	}
	for _, l := range c.layers {
		if err := s.cfg.Keys.Check(l); err != nil {
			return Image{}, err // before anything is fetched in vain
		}
	}
	if err := faultPullResolved.At(ctx); err != nil {
		return Image{}, err
	}
	if img, ok := s.warm(n, c, m); ok {
		return img, nil
	}
	pins := append(c.blobs(), c.image.RootFS.DiffIDs...)
	if err := s.garbage.pin(ctx, pins); err != nil {
		return Image{}, err
	}
	img, err := s.fetch(ctx, n, src, a, c, m)
	return img, errors.Join(err, s.garbage.settle(ctx, pins, err != nil))
}

// fetchTop fetches the document that the reference names. Its descriptor has a media type
// that tools understand, whatever the registry says.
func fetchTop(ctx context.Context, src *registry.Repository, n reference.Name) (ocispec.Descriptor, []byte, error) {
	d, data, err := src.Resolve(ctx, n.Wanted())
	if err != nil {
		return d, nil, err
	}
	doc, err := parseDocument(data, d.MediaType)
	if err != nil {
		return d, nil, err
	}
	if _, known := documentKinds[d.MediaType]; !known {
		d.MediaType = documentType(doc)
	}
	return d, data, nil
}

// documentType is the media type of a document whose server does not tell it.
func documentType(d *document) string {
	switch {
	case d.MediaType != "":
		return d.MediaType
	case d.isIndex():
		return ocispec.MediaTypeImageIndex
	}
	return ocispec.MediaTypeImageManifest
}

// checkTrust asks the signature policy, as it is now, about what was resolved.
func (s *Store) checkTrust(ctx context.Context, src *registry.Repository, c *content) error {
	policy, err := s.cfg.Policy.Load()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	manifest := c.top
	if c.manifest != c.top.Digest {
		data := c.documents[c.manifest]
		doc, err := parseDocument(data, "")
		if err != nil {
			return err
		}
		manifest = ocispec.Descriptor{MediaType: documentType(doc), Digest: c.manifest, Size: int64(len(data))}
	}
	return policy.Check(ctx, src, c.top, manifest)
}

// fetch brings everything that the image consists of into the store and names it. Layers that are
// shown lazily come later.
func (s *Store) fetch(ctx context.Context, n reference.Name, src *registry.Repository, a Auth, c *content, m *meter) (Image, error) {
	m.expect(c.size())
	parts := m.expectLayers(c.layers)
	if err := s.checkSpace(c); err != nil {
		return Image{}, err
	}
	if err := s.blobs.putDocuments(c); err != nil {
		return Image{}, err
	}
	m.add(c.config.Size)
	c.forget()
	g, gctx := errgroup.WithContext(ctx)
	for i, l := range c.layers {
		g.Go(func() error {
			diffID := c.image.RootFS.DiffIDs[i]
			if s.lazies.showLazily(gctx, n, a, l, diffID) {
				parts[i].add(l.Size)
				parts[i].complete()
				return nil
			}
			err := s.unpacker.ensureLayer(gctx, src, l, diffID, parts[i])
			if err == nil {
				parts[i].complete()
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return Image{}, err
	}
	if err := s.blobs.sync(); err != nil {
		return Image{}, err
	}
	if err := faultPullSynced.At(ctx); err != nil {
		return Image{}, err
	}
	img, err := s.commit(named{name: n, pulled: at(time.Now()), content: c})
	if err != nil {
		return Image{}, err
	}
	for i, l := range c.layers {
		if diffID := c.image.RootFS.DiffIDs[i]; s.unpacker.isLazy(l, diffID) {
			s.lazies.landSoon(src, l, diffID)
		}
	}
	return img, faultPullIndexed.At(ctx)
}

// checkSpace refuses a pull that cannot fit: at least the blobs have to, and unpacked
// they take no less.
func (s *Store) checkSpace(c *content) error {
	var need int64
	for i, l := range c.layers {
		if !s.blobs.has(l) {
			need += l.Size
		}
		if !s.cfg.Layers.HasLayer(c.image.RootFS.DiffIDs[i]) {
			need += l.Size
		}
	}
	if need == 0 {
		return nil
	}
	return s.blobs.keepFree(need, s.cfg.Layer.MinFree)
}
