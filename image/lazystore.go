package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
)

// LazyStore shows layers before they are here (package lazy): roots can be made of them, and their
// files come as they are read.
type LazyStore interface {
	// ShowLazy has a layer shown; on error nothing is left of it. One call at a time for a diff id.
	ShowLazy(ctx context.Context, l LazyLayer) error
	// LazyBlob is the blob that a layer is shown from and not unpacked yet; "" if it is not.
	LazyBlob(diffID digest.Digest) digest.Digest
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

// landing is a lazy layer on its way to be an ordinary one.
type landing struct {
	done chan struct{} // closed when err is set
	err  error
	// again, if not nil, is what a pull wants that came meanwhile. Guarded by Store.landingMu.
	again *arrival
}

// arrival is a layer to land: a blob, and where it is.
type arrival struct {
	src  *registry.Repository
	blob ocispec.Descriptor
}

// mayBeLazy says whether a layer is one to be shown. Its table of contents counts only with the digest that the
// manifest has for it. Blobs that are to be kept must be here before the pull ends.
func (s *Store) mayBeLazy(domain string, d ocispec.Descriptor) bool {
	return s.cfg.Lazy != nil && !s.cfg.KeepBlobs && s.registries.Load().Lazy(domain) &&
		(d.MediaType == ocispec.MediaTypeImageLayerGzip || d.MediaType == dockerLayerGzip) &&
		d.Size >= minLazy && d.Annotations[lazy.TOCAnnotation] != "" && !s.blobs.has(d)
}

// showLazily has a layer shown instead of pulling it, if it is one for that; else it says no.
func (s *Store) showLazily(ctx context.Context, n reference.Name, a Auth, d ocispec.Descriptor, diffID digest.Digest) bool {
	if !s.mayBeLazy(n.Domain, d) || s.cfg.Layers.HasLayer(diffID) {
		return false
	}
	_, _, err := s.shows.do(ctx, diffID, func(ctx context.Context) (struct{}, error) {
		if s.cfg.Lazy.LazyBlob(diffID) != "" {
			return struct{}{}, nil
		}
		return struct{}{}, s.cfg.Lazy.ShowLazy(ctx, LazyLayer{
			Image: n.String(), Domain: n.Domain, Path: n.Path, Auth: a, Hosts: s.registries.Load().Config(),
			Blob: d, DiffID: diffID, TOC: digest.Digest(d.Annotations[lazy.TOCAnnotation]),
		})
	})
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Log.Info("layer is pulled whole, not lazily", "image", n.String(), "layer", diffID.String(), "cause", err)
		}
		return false
	}
	// What another image claims to be this layer does not count: no one has seen yet what its blob
	// unpacks to.
	return s.isLazy(d, diffID)
}

// isLazy says whether a layer is shown from a blob.
func (s *Store) isLazy(d ocispec.Descriptor, diffID digest.Digest) bool {
	return s.cfg.Lazy != nil && s.cfg.Lazy.LazyBlob(diffID) == d.Digest
}

// landAll sees to it that all lazy layers of images become ordinary ones.
func (s *Store) landAll() error {
	for _, e := range s.index.now.Load().entries {
		for i, d := range e.layers {
			if diffID := e.image.RootFS.DiffIDs[i]; s.isLazy(d, diffID) {
				src, err := s.registries.Load().Repository(e.name.Domain, e.name.Path, Auth{})
				if err != nil {
					return fmt.Errorf("image %s: %w", e.name, err)
				}
				s.landSoon(src, d, diffID)
			}
		}
	}
	return nil
}

// landSoon has a lazy layer become an ordinary one as soon as its blob is here.
func (s *Store) landSoon(src *registry.Repository, d ocispec.Descriptor, diffID digest.Digest) {
	if s.begin() != nil {
		return // the next start goes on
	}
	s.landingMu.Lock()
	defer s.landingMu.Unlock()
	want := &arrival{src, d}
	if l := s.landings[diffID]; l != nil {
		l.again = want // that one may be about to give the layer up
		s.wg.Done()
		return
	}
	l := &landing{done: make(chan struct{})}
	s.landings[diffID] = l
	go func() {
		defer s.wg.Done()
		for ; want != nil; want = s.nextLanding(l, diffID) {
			l.err = s.land(s.ctx, want.src, want.blob, diffID)
			if l.err != nil && s.ctx.Err() == nil {
				s.cfg.Log.Error("lazy layer cannot be made an ordinary one", "repository", want.src.String(), "layer", diffID.String(), "error", l.err)
			}
		}
		close(l.done)
	}()
}

// nextLanding is what a landing that has ended goes on with; nil, and it is over, if the layer is lazy
// for no one any more.
func (s *Store) nextLanding(l *landing, diffID digest.Digest) *arrival {
	s.landingMu.Lock()
	defer s.landingMu.Unlock()
	want := l.again
	l.again = nil
	if want != nil && s.ctx.Err() == nil && s.isLazy(want.blob, diffID) {
		return want
	}
	delete(s.landings, diffID)
	return nil
}

// land waits for the blob and unpacks it. A layer that no one shows any more is pulled, and if that
// cannot be done the images that need it go: pulled again, they have what it takes.
func (s *Store) land(ctx context.Context, src *registry.Repository, d ocispec.Descriptor, diffID digest.Digest) error {
	f, err := s.cfg.Lazy.AwaitLazy(ctx, diffID)
	if err == nil {
		defer f.Close()
	}
	if ctx.Err() != nil || !s.isLazy(d, diffID) && !s.cfg.Layers.HasLayer(diffID) {
		return ctx.Err() // it has gone with its images
	}
	pins := []digest.Digest{d.Digest, diffID}
	if perr := s.garbage.pin(ctx, pins); perr != nil {
		return perr
	}
	switch {
	case s.cfg.Layers.HasLayer(diffID):
		err = nil // it was brought in another way
	case err == nil:
		err = s.landBlob(ctx, f, d, diffID)
	case !errors.Is(err, ErrInvalidImage):
		s.cfg.Log.Warn("layer is not shown any more, and pulled whole", "repository", src.String(), "layer", diffID.String(), "cause", err)
		err = s.ensureLayer(ctx, src, d, diffID, part{&meter{}, &LayerProgress{}})
	}
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, s.dropWith(diffID))
	}
	if err == nil {
		err = s.landed(ctx, diffID)
	}
	return errors.Join(err, s.garbage.settle(ctx, pins, true))
}

// landBlob unpacks a blob that has come. Its digest was compared where it came.
func (s *Store) landBlob(ctx context.Context, f *os.File, d ocispec.Descriptor, diffID digest.Digest) error {
	if err := faultLazyWhole.At(ctx); err != nil {
		return err
	}
	if err := s.unpackFile(ctx, f, d, diffID, false); err != nil {
		return err
	}
	s.ledger.Learn(d.Digest, diffID)
	return faultLazyUnpacked.At(ctx)
}

// commitLayer gives an unpacked layer its name. One that takes the place of a lazy layer is named by
// images already, and is synced before.
func (s *Store) commitLayer(ctx context.Context, w LayerWriter, diffID digest.Digest) error {
	if s.cfg.Lazy != nil && s.cfg.Lazy.LazyBlob(diffID) != "" {
		if err := s.syncs.do(struct{}{}); err != nil {
			return err
		}
	}
	defer s.blobs.unsynced.begin()()
	return w.Commit(ctx, diffID)
}

// landed makes last what has been learnt, and lets the blob go.
func (s *Store) landed(ctx context.Context, diffID digest.Digest) error {
	if err := s.ledger.Save(blobsOf(s.index.now.Load().entries)); err != nil {
		return err
	}
	return s.cfg.Lazy.LazyUnpacked(ctx, diffID)
}

// dropWith takes the images from the index that need a layer which is not what it was shown as.
func (s *Store) dropWith(diffID digest.Digest) error {
	return s.index.drop(func(e named) bool {
		needs := slices.Contains(e.image.RootFS.DiffIDs, diffID)
		if needs {
			s.cfg.Log.Warn("image dropped: a layer of it is not whole and cannot be had; it has to be pulled again", "image", e.name.String())
		}
		return needs
	})
}

// awaitWhole returns when a layer is no lazy one, or cannot be an ordinary one.
func (s *Store) awaitWhole(ctx context.Context, diffID digest.Digest) error {
	s.landingMu.Lock()
	l := s.landings[diffID]
	s.landingMu.Unlock()
	if l == nil {
		return nil
	}
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("layer %s is still being fetched: %w", diffID, ctx.Err())
	}
}
