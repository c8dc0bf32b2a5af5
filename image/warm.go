package image

import (
	"bytes"
	"context"
	"os"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
)

// warm ends a pull that finds all there: the name names what it is to name, and everything that the
// image consists of is whole and on the disk. Then nothing is written and no disk is synced, which
// would have this pull wait for whatever else the machine is writing. That the image was
// pulled again is written with the next change of the index, or by Close.
func (p *puller) warm(n reference.Name, c *manifest.Content, m *meter) (img Image, ok bool) {
	if !p.unpacker.isWhole(c) || !p.blobs.unsynced.nothing() {
		return Image{}, false
	}
	if img, ok = p.index.pulledAgain(n, c); !ok {
		return Image{}, false
	}
	m.expect(c.Size())
	m.add(c.Config.Size)
	for i, l := range m.expectLayers(c.Layers) {
		l.add(c.Layers[i].Size)
		l.complete()
	}
	return img, true
}

// stored reads documents from the store if they are there, and else as before.
func (b *blobs) stored(otherwise manifest.Reader) manifest.Reader {
	return func(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
		if data, err := b.read(ctx, d); err == nil && int64(len(data)) == d.Size {
			return data, nil
		}
		return otherwise(ctx, d)
	}
}

// holds says whether a small blob is there with these bytes.
func (l layout) holds(d digest.Digest, data []byte) bool {
	had, err := os.ReadFile(l.blob(d))
	return err == nil && bytes.Equal(had, data)
}

// unsynced counts what gets a name in the store, and what a sync has made sure of: what had its
// name when that began. An image that the index names is synced, but for what was damaged and has
// just been written again.
type unsynced struct{ begun, done, synced atomic.Uint64 }

// begin comes before something gets a name, and done after, or when it does not.
func (u *unsynced) begin() (done func()) {
	u.begun.Add(1)
	return func() { u.done.Add(1) }
}

func (u *unsynced) nothing() bool { return u.begun.Load() == u.synced.Load() }

// during runs a sync, of which there is one at a time.
func (u *unsynced) during(sync func() error) error {
	n := u.done.Load()
	err := sync()
	if err == nil {
		u.synced.Store(n)
	}
	return err
}
