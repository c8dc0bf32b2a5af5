package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/image/archive"
	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/pack"
	"github.com/coracle-project/coracle/image/reference"
)

// offer is an image from elsewhere than a registry: an archive, or made here. Its
// documents and files are what their digests say.
type offer interface {
	Document(ctx context.Context, d ocispec.Descriptor) ([]byte, error)
	// Open opens a layer's blob. fs.ErrNotExist: it is in the store, if anywhere.
	Open(d ocispec.Descriptor) (*os.File, error)
}

// adder makes images of what comes from elsewhere than registries.
type adder struct {
	blobs    *blobs.Store
	garbage  *garbage.Sweeper
	unpacker *ingest.Unpacker
	scratch  *pack.Scratch
	calls    *calls
	commit   func(...catalog.Entry) (Image, error)
}

// add brings an offered image into the store under some names. When it returns, the
// image survives a reset of the machine; after an error nothing of it is left. from is the archive
// that pins it, if any.
func (a *adder) add(ctx context.Context, names []reference.Name, top ocispec.Descriptor, o offer, from catalog.Archive) (Image, error) {
	data, err := o.Document(ctx, top)
	if err != nil {
		return Image{}, asInvalid(err)
	}
	c, err := manifest.Resolve(ctx, top, data, o.Document)
	if err != nil {
		return Image{}, asInvalid(err)
	}
	pins := append(c.Blobs(), c.Image.RootFS.DiffIDs...)
	if err := a.garbage.Pin(ctx, pins); err != nil {
		return Image{}, err
	}
	img, err := a.take(ctx, names, c, o, from)
	return img, errors.Join(err, a.garbage.Settle(ctx, pins, err != nil))
}

// asInvalid gives a wrong archive the kind that a wrong image has.
func asInvalid(err error) error {
	if errors.Is(err, archive.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrInvalidImage, err)
	}
	return err
}

// take stores everything that the image consists of and names it.
func (a *adder) take(
	ctx context.Context, names []reference.Name, c *manifest.Content, o offer, from catalog.Archive,
) (img Image, err error) {
	if err := a.blobs.PutDocuments(c); err != nil {
		return Image{}, err
	}
	c.Forget()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0)) // unpacking computes
	for i, l := range c.Layers {
		diffID := c.Image.RootFS.DiffIDs[i]
		g.Go(func() error {
			for {
				joined, err := a.unpacker.Offered(gctx, l, diffID, o)
				if err == nil || !joined || gctx.Err() != nil {
					return err
				}
				// The other archive was wrong, or its client has gone: try ours.
			}
		})
	}
	if err := g.Wait(); err != nil {
		return Image{}, asInvalid(err)
	}
	if err := a.blobs.Sync(); err != nil {
		return Image{}, err
	}
	if err := faultAddSynced.At(ctx); err != nil {
		return Image{}, err
	}
	entries := make([]catalog.Entry, len(names))
	for i, n := range names {
		entries[i] = catalog.Entry{Name: n, Pulled: catalog.At(time.Now()), Archive: from, Content: c}
	}
	if img, err = a.commit(entries...); err != nil {
		return Image{}, err
	}
	return img, faultAddIndexed.At(ctx)
}

// made is an image that is put together here.
type made struct {
	documents map[digest.Digest][]byte
	files     map[digest.Digest]string // paths
}

func (m *made) Document(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
	if data, ok := m.documents[d.Digest]; ok {
		return data, nil
	}
	return nil, fmt.Errorf("document %s: %w", d.Digest, fs.ErrNotExist)
}

func (m *made) Open(d ocispec.Descriptor) (*os.File, error) {
	if path, ok := m.files[d.Digest]; ok {
		return os.Open(path)
	}
	return nil, fmt.Errorf("blob %s: %w", d.Digest, fs.ErrNotExist)
}

// document keeps a document and returns its descriptor.
func (m *made) document(mediaType string, data []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if m.documents == nil {
		m.documents = map[digest.Digest][]byte{}
	}
	m.documents[d.Digest] = data
	return d
}
