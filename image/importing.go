package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/internal/ctxio"
)

// Import makes an image of one layer: the tar archive of a root file system, packed
// with gzip or zstd or not at all. Of the configuration, what the image consists of
// (rootfs) is set here; a missing platform is this machine's.
// Kinds: ErrInvalidImage, ErrInvalidReference.
func (s *Store) Import(ctx context.Context, r io.Reader, ref string, config ocispec.Image) (Image, error) {
	n, err := parseTag(ref)
	if err != nil {
		return Image{}, err
	}
	config.RootFS = ocispec.RootFS{}
	config.History = append(config.History, ocispec.History{CreatedBy: "coracle image import"})
	img, err := s.adder.compose(ctx, n, base{config: config}, func(ctx context.Context, w io.Writer) error {
		_, err := io.Copy(w, ctxio.Reader(ctx, r))
		return err
	})
	if err != nil {
		return Image{}, fmt.Errorf("import %s: %w", n, err)
	}
	return img, nil
}

// base is what a composed image builds on.
type base struct {
	config ocispec.Image // its last step of the history is that of the new layer
	layers []ocispec.Descriptor
	// original is the configuration that config was made of; nil if there was none.
	original []byte
}

// compose makes an image of a base and one layer more, and names it. write writes the
// layer as a tar archive, packed or not.
func (a *adder) compose(ctx context.Context, n reference.Name, b base, write func(context.Context, io.Writer) error) (Image, error) {
	if err := a.calls.begin(); err != nil {
		return Image{}, err
	}
	defer a.calls.done()
	ctx, stop := a.calls.bound(ctx)
	defer stop()
	dir, remove, err := a.scratch.Dir()
	if err != nil {
		return Image{}, err
	}
	defer remove()
	path := filepath.Join(dir, "layer")
	layer, diffID, err := a.scratch.Stage(ctx, path, write)
	if err != nil {
		return Image{}, because(ctx, err)
	}
	m := &made{files: map[digest.Digest]string{layer.Digest: path}}
	top, err := m.assemble(b, layer, diffID)
	if err != nil {
		return Image{}, err
	}
	img, err := a.add(ctx, []reference.Name{n}, top, m, catalog.Archive{})
	return img, because(ctx, err)
}

// assemble makes configuration and manifest.
func (m *made) assemble(b base, layer ocispec.Descriptor, diffID digest.Digest) (ocispec.Descriptor, error) {
	c := b.config
	now := time.Now().UTC()
	c.Created = &now
	if c.OS == "" {
		c.OS = "linux"
	}
	if c.Architecture == "" {
		c.Architecture = runtime.GOARCH
	}
	if n := len(c.History); n > 0 {
		c.History[n-1].Created = &now
	}
	c.RootFS.Type = "layers"
	c.RootFS.DiffIDs = append(c.RootFS.DiffIDs[:len(c.RootFS.DiffIDs):len(c.RootFS.DiffIDs)], diffID)
	data, err := json.Marshal(c)
	if err == nil {
		data, err = keepUnknown(b.original, data)
	}
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	result := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    m.document(ocispec.MediaTypeImageConfig, data),
	}
	for _, l := range b.layers {
		l.MediaType = manifest.OCILayer(l.MediaType)
		result.Layers = append(result.Layers, l)
	}
	result.Layers = append(result.Layers, layer)
	if data, err = json.Marshal(result); err != nil {
		return ocispec.Descriptor{}, err
	}
	return m.document(result.MediaType, data), nil
}
