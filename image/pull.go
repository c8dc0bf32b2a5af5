package image

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/peer"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/flight"
)

// pullKey is what makes two pulls the same. Credentials are a part of it: a pull
// without them must not succeed because another one has them.
type pullKey struct {
	name reference.Name
	auth Auth
}

// puller fetches images from registries.
type puller struct {
	cfg        *Config
	registries *atomic.Pointer[registry.Client]
	blobs      *blobs.Store
	index      *catalog.Index
	garbage    *garbage.Sweeper
	unpacker   *ingest.Unpacker
	lazies     *lazies
	shares     *shares
	peers      *peer.Swarm
	commit     func(...catalog.Entry) (Image, error)

	pulls  flight.Flight[pullKey, Image]
	meters meters
}

func newPuller(s *Store) *puller {
	return &puller{
		cfg: &s.cfg, registries: &s.registries, blobs: s.blobs, index: s.index, garbage: s.garbage, unpacker: s.unpacker,
		lazies: s.lazies, shares: s.shares, peers: s.peers, commit: s.commit, meters: meters{all: map[pullKey]*ingest.Meter{}},
	}
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
		// The caller chose the credentials for Docker Hub, as the kubelet does for short names. They
		// are not for another registry.
		opts.Auth = Auth{}
	}
	if err := s.calls.begin(); err != nil {
		return Image{}, err
	}
	defer s.calls.done()
	ctx, stop := s.calls.bound(ctx)
	defer stop()
	img, err := s.puller.join(ctx, pullKey{n, opts.Auth}, &ingest.Watcher{Report: opts.Progress, Layer: opts.Layer})
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", n, because(ctx, err))
	}
	return img, nil
}

// join pulls, or joins a pull that is the same.
func (p *puller) join(ctx context.Context, key pullKey, w *ingest.Watcher) (Image, error) {
	m, stop := p.meters.watch(key, w)
	defer stop()
	img, _, err := p.pulls.Do(ctx, key, func(ctx context.Context) (Image, error) {
		return p.pull(ctx, key.name, key.auth, m)
	})
	return img, err
}

func (p *puller) pull(ctx context.Context, n reference.Name, a Auth, m *ingest.Meter) (Image, error) {
	src, err := p.registries.Load().Repository(n.Domain, n.Path, a)
	if err != nil {
		return Image{}, err
	}
	top, data, err := fetchTop(ctx, src, n)
	if err != nil {
		return Image{}, err
	}
	c, err := manifest.Resolve(ctx, top, data, p.blobs.Stored(src.Fetch))
	if err != nil {
		return Image{}, err
	}
	if err := p.checkTrust(ctx, src, c); err != nil {
		return Image{}, err
	}
	if err := p.cfg.Keys.Check(ctx, c.Layers...); err != nil {
		return Image{}, err // before anything is fetched in vain
	}
	if err := faultPullResolved.At(ctx); err != nil {
		return Image{}, err
	}
	if img, ok := p.warm(n, c, m); ok {
		return img, nil
	}
	pins := append(c.Blobs(), c.Image.RootFS.DiffIDs...)
	if err := p.garbage.Pin(ctx, pins); err != nil {
		return Image{}, err
	}
	img, err := p.fetch(ctx, n, src, a, c, m)
	return img, errors.Join(err, p.garbage.Settle(ctx, pins, err != nil))
}

// fetchTop fetches the document that the reference names. Its descriptor has a media type
// that tools understand, whatever the registry says.
func fetchTop(ctx context.Context, src *registry.Repository, n reference.Name) (ocispec.Descriptor, []byte, error) {
	d, data, err := src.Resolve(ctx, n.Wanted())
	if err != nil {
		return d, nil, err
	}
	doc, err := manifest.Parse(data, d.MediaType)
	if err != nil {
		return d, nil, err
	}
	if !manifest.IsDocument(d.MediaType) {
		d.MediaType = doc.Type()
	}
	return d, data, nil
}

// checkTrust asks the signature policy, as it is now, about what was resolved.
func (p *puller) checkTrust(ctx context.Context, src *registry.Repository, c *manifest.Content) error {
	policy, err := p.cfg.Policy.Load()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	ours := c.Top
	if c.Manifest != c.Top.Digest {
		data := c.Documents[c.Manifest]
		doc, err := manifest.Parse(data, "")
		if err != nil {
			return err
		}
		ours = ocispec.Descriptor{MediaType: doc.Type(), Digest: c.Manifest, Size: int64(len(data))}
	}
	return policy.Check(ctx, src, c.Top, ours)
}

// fetch brings everything that the image consists of into the store and names it. Layers that are
// shown lazily come later.
func (p *puller) fetch(
	ctx context.Context, n reference.Name, src *registry.Repository, a Auth, c *manifest.Content, m *ingest.Meter,
) (Image, error) {
	m.Expect(c.Size())
	parts := m.ExpectLayers(c.Layers)
	if err := p.checkSpace(c); err != nil {
		return Image{}, err
	}
	if err := p.blobs.PutDocuments(c); err != nil {
		return Image{}, err
	}
	m.Add(c.Config.Size)
	c.Forget()
	defer p.shares.during(n.Repo, c)()
	from := ingest.Origin{Repository: src, Peers: p.peers.Pull(n.Repo, p.unpacker.Missing(c))}
	defer from.Peers.End()
	g, gctx := errgroup.WithContext(ctx)
	for i, l := range c.Layers {
		g.Go(func() error {
			diffID := c.Image.RootFS.DiffIDs[i]
			if p.lazies.showLazily(gctx, n, a, l, diffID) {
				from.Peers.Release(l.Digest, true)
				parts[i].Add(l.Size)
				parts[i].Complete()
				return nil
			}
			err := p.unpacker.EnsureLayer(gctx, from, l, diffID, parts[i])
			if err == nil {
				parts[i].Complete()
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return Image{}, err
	}
	if err := p.blobs.Sync(); err != nil {
		return Image{}, err
	}
	if err := faultPullSynced.At(ctx); err != nil {
		return Image{}, err
	}
	img, err := p.commit(catalog.Entry{Name: n, Pulled: catalog.At(time.Now()), Content: c})
	if err != nil {
		return Image{}, err
	}
	for i, l := range c.Layers {
		if diffID := c.Image.RootFS.DiffIDs[i]; p.unpacker.IsLazy(l, diffID) {
			p.lazies.landSoon(src, l, diffID)
		}
	}
	return img, faultPullIndexed.At(ctx)
}

// checkSpace refuses a pull that cannot fit: at least the blobs have to, and unpacked
// they take no less.
func (p *puller) checkSpace(c *manifest.Content) error {
	var need int64
	for i, l := range c.Layers {
		if !p.blobs.Has(l) {
			need += l.Size
		}
		if !p.cfg.Layers.HasLayer(c.Image.RootFS.DiffIDs[i]) {
			need += l.Size
		}
	}
	if need == 0 {
		return nil
	}
	return p.blobs.KeepFree(need, p.cfg.Layer.MinFree)
}
