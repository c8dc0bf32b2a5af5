package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/ledger"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/flight"
)

// LazyStore shows layers before they are here (package lazy): roots can be made of them, and their
// files come as they are read.
type LazyStore interface {
	// ShowLazy has a layer shown; on error nothing is left of it. One call at a time for a diff id.
	ShowLazy(ctx context.Context, l LazyLayer) error
	// LazySource is the blob that a layer is shown from and not unpacked yet, and the digest of
	// its table of contents; "" if it is not.
	LazySource(diffID digest.Digest) (blob, toc digest.Digest)
	// AwaitLazy returns the blob when it is here and its digest right. Kinds: ErrInvalidImage if
	// it never will be; others if the layer is not shown any more.
	AwaitLazy(ctx context.Context, diffID digest.Digest) (*os.File, error)
	// LazyUnpacked says that the layer is in the LayerStore now, or gone: it need not be shown to
	// anybody new.
	LazyUnpacked(ctx context.Context, diffID digest.Digest) error
}

// LazyLayer is a layer to be shown.
type LazyLayer struct {
	Image        string // for messages
	Domain, Path string // of the repository
	Auth         Auth
	Hosts        registry.Config
	Blob         ocispec.Descriptor
	DiffID, TOC  digest.Digest
}

// minLazy is the size of a blob, bytes, below which showing it is not faster than pulling it.
const minLazy = 1 << 20

// lazies are the layers that are shown before they are here, until each is an ordinary one.
type lazies struct {
	lazy       LazyStore // nil: none
	unpacker   *ingest.Unpacker
	blobs      *blobs.Store
	layers     ingest.Layers
	ledger     *ledger.Ledger
	index      *catalog.Index
	garbage    *garbage.Sweeper
	registries *atomic.Pointer[registry.Client]
	log        *slog.Logger

	ctx   context.Context // ends when the store is closed
	calls *calls          // of the store

	shows flight.Flight[digest.Digest, struct{}] // by diff id

	pause time.Duration // before a failed landing is tried again for the first time

	mu       sync.Mutex
	landings map[digest.Digest]*landing // by diff id
}

// A landing that fails for a reason that may pass, such as a full disk, is tried again. The pause
// before it doubles with each failure.
const firstLandingPause, longestLandingPause = time.Second, 5 * time.Minute

func newLazies(s *Store) *lazies {
	return &lazies{
		lazy: s.cfg.Lazy, unpacker: s.unpacker, blobs: s.blobs, layers: s.cfg.Layers, ledger: s.ledger, index: s.index,
		garbage: s.garbage, registries: &s.registries, log: s.cfg.Log,
		ctx: s.calls.ctx, calls: s.calls, pause: firstLandingPause, landings: map[digest.Digest]*landing{},
	}
}

// landing is a lazy layer on its way to be an ordinary one.
type landing struct {
	done chan struct{} // closed when it is over
	wake chan struct{} // has room for one: a pull came, which may have other credentials

	// Guarded by lazies.mu.
	again *arrival // if not nil, what a pull wants that came meanwhile
	try   *landingTry
}

// landingTry is what others wait for: the end of a landing, or its next pause.
type landingTry struct {
	ended chan struct{} // closed when err is set
	err   error
}

func newLandingTry() *landingTry { return &landingTry{ended: make(chan struct{})} }

func (t *landingTry) end(err error) {
	t.err = err
	close(t.ended)
}

// arrival is a layer to land: a blob, and where it is.
type arrival struct {
	src  *registry.Repository
	blob ocispec.Descriptor
}

// mayBeLazy says whether a layer is one to be shown. Its table of contents counts only with the
// digest that the manifest has for it. Blobs that are to be kept must be here before the pull ends.
func (z *lazies) mayBeLazy(domain string, d ocispec.Descriptor) bool {
	return z.lazy != nil && !z.blobs.Kept && z.registries.Load().Lazy(domain) &&
		(d.MediaType == ocispec.MediaTypeImageLayerGzip || d.MediaType == manifest.DockerLayerGzip) &&
		d.Size >= minLazy && d.Annotations[lazy.TOCAnnotation] != "" && !z.blobs.Has(d)
}

// showLazily has a layer shown instead of pulling it, if it is one for that; else it says no.
func (z *lazies) showLazily(ctx context.Context, n reference.Name, a Auth, d ocispec.Descriptor, diffID digest.Digest) bool {
	if !z.mayBeLazy(n.Domain, d) || z.layers.HasLayer(diffID) || z.hasOther(d, diffID) {
		return false
	}
	_, _, err := z.shows.Do(ctx, diffID, func(ctx context.Context) (struct{}, error) {
		if blob, _ := z.lazy.LazySource(diffID); blob != "" {
			return struct{}{}, nil
		}
		return struct{}{}, z.lazy.ShowLazy(ctx, LazyLayer{
			Image: n.String(), Domain: n.Domain, Path: n.Path, Auth: a, Hosts: z.registries.Load().Config(),
			Blob: d, DiffID: diffID, TOC: digest.Digest(d.Annotations[lazy.TOCAnnotation]),
		})
	})
	if err != nil {
		if ctx.Err() == nil {
			z.log.Info("layer is pulled whole, not lazily", "image", n.String(), "layer", diffID.String(), "cause", err)
		}
		return false
	}
	// What another image claims to be this layer does not count: no one has seen yet what its blob
	// unpacks to, or whether its table of contents is that of the blob.
	return z.unpacker.IsLazy(d, diffID)
}

// hasOther says whether an image in the store names another blob or table of contents for a layer.
// Its own may be missing, for example because it was damaged.
func (z *lazies) hasOther(d ocispec.Descriptor, diffID digest.Digest) bool {
	for _, e := range z.index.Present().Entries {
		for i, l := range e.Layers {
			if e.Image.RootFS.DiffIDs[i] == diffID &&
				(l.Digest != d.Digest || l.Annotations[lazy.TOCAnnotation] != d.Annotations[lazy.TOCAnnotation]) {
				return true
			}
		}
	}
	return false
}

// landAll sees to it that all lazy layers of images become ordinary ones.
func (z *lazies) landAll() error {
	for _, e := range z.index.Present().Entries {
		for i, d := range e.Layers {
			if diffID := e.Image.RootFS.DiffIDs[i]; z.unpacker.IsLazy(d, diffID) {
				src, err := z.registries.Load().Repository(e.Name.Domain, e.Name.Path, Auth{})
				if err != nil {
					return fmt.Errorf("image %s: %w", e.Name, err)
				}
				z.landSoon(src, d, diffID)
			}
		}
	}
	return nil
}

// landSoon has a lazy layer become an ordinary one as soon as its blob is here.
func (z *lazies) landSoon(src *registry.Repository, d ocispec.Descriptor, diffID digest.Digest) {
	if z.calls.begin() != nil {
		return // the next start goes on
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	want := &arrival{src, d}
	if l := z.landings[diffID]; l != nil {
		l.again = want // that one may be about to give the layer up
		select {
		case l.wake <- struct{}{}:
		default:
		}
		z.calls.done()
		return
	}
	l := &landing{done: make(chan struct{}), wake: make(chan struct{}, 1), try: newLandingTry()}
	z.landings[diffID] = l
	go func() {
		defer z.calls.done()
		defer close(l.done)
		var pause time.Duration
		for want != nil {
			err := z.land(z.ctx, want.src, want.blob, diffID)
			if err == nil || errors.Is(err, ErrInvalidImage) || z.ctx.Err() != nil {
				if err != nil && z.ctx.Err() == nil {
					z.log.Error("lazy layer cannot be made an ordinary one", "repository", want.src.String(), "layer", diffID.String(), "err", err)
				}
				want = z.nextLanding(l, diffID, err)
				continue
			}
			pause = min(max(2*pause, z.pause), longestLandingPause)
			z.log.Warn("lazy layer cannot be made an ordinary one yet", "repository", want.src.String(), "layer", diffID.String(), "err", err,
				"pause", pause)
			want = z.landLater(l, want, err, pause)
		}
	}()
}

// landLater returns what to try to land after a failure, when a pause has passed or a pull came.
func (z *lazies) landLater(l *landing, failed *arrival, err error, pause time.Duration) *arrival {
	z.mu.Lock()
	l.try.end(err)
	z.mu.Unlock()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.wake:
	case <-z.ctx.Done():
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	l.try = newLandingTry()
	if l.again != nil {
		failed, l.again = l.again, nil
	}
	return failed
}

// nextLanding is what a landing that has ended with err goes on with; nil, and it is over, if the
// layer is lazy for no one any more.
func (z *lazies) nextLanding(l *landing, diffID digest.Digest, err error) *arrival {
	z.mu.Lock()
	defer z.mu.Unlock()
	want := l.again
	l.again = nil
	if want != nil && z.ctx.Err() == nil && z.unpacker.IsLazy(want.blob, diffID) {
		return want
	}
	delete(z.landings, diffID)
	l.try.end(err)
	return nil
}

// land waits for the blob and unpacks it. A layer that no one shows any more is pulled. If it is
// not what its digests say, the images that need it go; any other failure may pass.
func (z *lazies) land(ctx context.Context, src *registry.Repository, d ocispec.Descriptor, diffID digest.Digest) error {
	f, err := z.lazy.AwaitLazy(ctx, diffID)
	if errors.Is(err, lazy.ErrNotShown) && z.unpacker.IsLazy(d, diffID) {
		f, err = z.lazy.AwaitLazy(ctx, diffID) // it went with its images, and a pull has brought it again
	}
	if err == nil {
		defer f.Close()
	}
	if ctx.Err() != nil || !z.unpacker.IsLazy(d, diffID) && !z.layers.HasLayer(diffID) {
		return ctx.Err() // it has gone with its images
	}
	pins := []digest.Digest{d.Digest, diffID}
	if perr := z.garbage.Pin(ctx, pins); perr != nil {
		return perr
	}
	switch {
	case z.layers.HasLayer(diffID):
		err = nil // it was brought in another way
	case err == nil:
		err = z.landBlob(ctx, f, d, diffID)
	case !errors.Is(err, ErrInvalidImage):
		z.log.Warn("layer is not shown any more, and pulled whole", "repository", src.String(), "layer", diffID.String(), "cause", err)
		err = z.unpacker.EnsureLayer(ctx, ingest.Origin{Repository: src}, d, diffID, ingest.Unwatched())
	}
	if errors.Is(err, ErrInvalidImage) && ctx.Err() == nil {
		err = errors.Join(err, z.dropWith(diffID))
	}
	if err == nil {
		err = z.landed(ctx, diffID)
	}
	return errors.Join(err, z.garbage.Settle(ctx, pins, true))
}

// landBlob unpacks a blob that has come. Its digest was compared where it came.
func (z *lazies) landBlob(ctx context.Context, f *os.File, d ocispec.Descriptor, diffID digest.Digest) error {
	if err := faultLazyWhole.At(ctx); err != nil {
		return err
	}
	if err := z.unpacker.UnpackFile(ctx, f, d, diffID, false); err != nil {
		return err
	}
	z.ledger.Learn(d.Digest, diffID)
	return faultLazyUnpacked.At(ctx)
}

// landed makes last what has been learnt, and lets the blob go.
func (z *lazies) landed(ctx context.Context, diffID digest.Digest) error {
	if err := z.ledger.Save(catalog.BlobsOf(z.index.Present().Entries)); err != nil {
		return err
	}
	return z.lazy.LazyUnpacked(ctx, diffID)
}

// dropWith takes the images from the index that need a layer which is not what it was shown as.
func (z *lazies) dropWith(diffID digest.Digest) error {
	return z.index.Drop(func(e catalog.Entry) bool {
		needs := slices.Contains(e.Image.RootFS.DiffIDs, diffID)
		if needs {
			z.log.Warn("image dropped: a layer of it is incomplete and cannot be completed; pull it again", "image", e.Name.String())
		}
		return needs
	})
}

// awaitWhole returns when a layer is no lazy one, or cannot be an ordinary one for now.
func (z *lazies) awaitWhole(ctx context.Context, diffID digest.Digest) error {
	z.mu.Lock()
	l := z.landings[diffID]
	if l == nil {
		z.mu.Unlock()
		return nil
	}
	try := l.try
	z.mu.Unlock()
	select {
	case <-try.ended:
		return try.err
	case <-ctx.Done():
		return fmt.Errorf("layer %s is still being fetched: %w", diffID, ctx.Err())
	}
}
