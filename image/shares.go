package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/peer"
)

// shares is what other nodes may fetch from this one (peer.Stock): blobs and layers of the images
// of a repository, also while they arrive.
type shares struct {
	blobs    *blobs.Store
	index    *catalog.Index
	garbage  *garbage.Sweeper
	unpacker *ingest.Unpacker
	layers   LayerArchiver

	mu    sync.Mutex
	pulls map[*sharedPull]bool
}

// sharedPull is an image that is being pulled, and is not in the index yet.
type sharedPull struct {
	repository string
	*manifest.Content
}

func newShares(s *Store) *shares {
	return &shares{
		blobs: s.blobs, index: s.index, garbage: s.garbage, unpacker: s.unpacker, layers: s.cfg.Layers, pulls: map[*sharedPull]bool{},
	}
}

// during shares an image while it is pulled, until end is called.
func (h *shares) during(repository string, c *manifest.Content) (end func()) {
	p := &sharedPull{repository, c}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pulls[p] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.pulls, p)
	}
}

// of finds a blob in the images of a repository. Those of others do not count: which of them the
// nodes may read, only the registry can say.
func (h *shares) of(repository string, blob digest.Digest) (d ocispec.Descriptor, diffID digest.Digest, ok bool) {
	in := func(c *manifest.Content) bool {
		i := slices.IndexFunc(c.Layers, func(l ocispec.Descriptor) bool { return l.Digest == blob })
		if i >= 0 {
			d, diffID, ok = c.Layers[i], c.Image.RootFS.DiffIDs[i], true
		}
		return ok
	}
	h.mu.Lock()
	for p := range h.pulls {
		if p.repository == repository && in(p.Content) {
			h.mu.Unlock()
			return d, diffID, true
		}
	}
	h.mu.Unlock()
	for _, e := range h.index.Present().Entries {
		if e.Name.Repo == repository && in(e.Content) {
			return d, diffID, true
		}
	}
	return d, "", false
}

// State implements peer.Stock.
func (h *shares) State(repository string, blob digest.Digest) peer.State {
	d, diffID, ok := h.of(repository, blob)
	switch {
	case !ok:
		return peer.None
	case h.blobs.Has(d):
		return peer.Whole
	case h.unpacker.Arriving(ingest.Incoming{Blob: blob}) != nil:
		return peer.Arriving
	case h.hasLayer(d, diffID):
		return peer.Unpacked
	case h.unpacker.Arriving(ingest.Incoming{Blob: blob, DiffID: diffID}) != nil:
		return peer.Unpacking
	}
	return peer.None
}

// hasLayer says whether a blob's layer can leave as its archive. One that came encrypted must not.
func (h *shares) hasLayer(d ocispec.Descriptor, diffID digest.Digest) bool {
	_, encrypted := crypt.Encrypted(d.MediaType)
	return !encrypted && h.unpacker.CanRebuild(d.Digest, diffID)
}

// OpenBlob implements peer.Stock.
func (h *shares) OpenBlob(ctx context.Context, repository string, blob digest.Digest) (io.ReadCloser, int64, error) {
	d, _, ok := h.of(repository, blob)
	if !ok {
		return nil, 0, peer.ErrNone
	}
	if s := h.unpacker.Arriving(ingest.Incoming{Blob: blob}); s != nil {
		// It has another name, or none, if it has just come.
		if r, err := s.Follow(ctx); err == nil {
			return r, d.Size, nil
		}
	}
	f, err := os.Open(h.blobs.Path(blob))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, fmt.Errorf("%w: %w", peer.ErrNone, err)
	case err != nil:
		return nil, 0, err
	case !h.blobs.Has(d):
		return nil, 0, errors.Join(fmt.Errorf("%w: blob %s does not have %d bytes", blobs.ErrRotten, blob, d.Size), f.Close())
	}
	return f, d.Size, nil
}

// WriteLayer implements peer.Stock. The layer stays while it is read.
func (h *shares) WriteLayer(ctx context.Context, repository string, blob digest.Digest, begin func(size int64) io.Writer) error {
	d, diffID, ok := h.of(repository, blob)
	if !ok {
		return peer.ErrNone
	}
	if !h.hasLayer(d, diffID) {
		if s := h.unpacker.Arriving(ingest.Incoming{Blob: blob, DiffID: diffID}); s != nil {
			return s.Copy(ctx, begin)
		}
		return peer.ErrNone
	}
	pins := []digest.Digest{diffID}
	if err := h.garbage.Pin(ctx, pins); err != nil {
		return err
	}
	size, err := h.layers.ArchiveSize(ctx, diffID)
	if err == nil {
		err = h.layers.Archive(ctx, diffID, begin(size))
	}
	_, _, stays := h.of(repository, blob)
	if serr := h.garbage.Settle(ctx, pins, !stays); err == nil {
		err = serr
	}
	return err
}
