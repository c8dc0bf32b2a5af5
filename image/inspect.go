package image

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Documents are an image's manifest and configuration as they are in the store,
// byte for byte.
type Documents struct {
	Manifest, Config []byte
}

// Documents reads the documents of an image, found as by Get.
func (s *Store) Documents(ctx context.Context, refOrID string) (Image, Documents, error) {
	e, err := s.index.Present().Entry(refOrID)
	if err != nil {
		return Image{}, Documents{}, err
	}
	img, err := s.index.Present().Find(e.Config.Digest.String())
	if err != nil {
		return Image{}, Documents{}, err // removed just now
	}
	var d Documents
	if d.Manifest, err = s.blobs.Read(ctx, ocispec.Descriptor{Digest: e.Manifest}); err == nil {
		d.Config, err = s.blobs.Read(ctx, e.Config)
	}
	if err != nil {
		return Image{}, Documents{}, fmt.Errorf("read image %s: %w", refOrID, err)
	}
	return img.View(), d, nil
}

// Blob is one file of the store's blobs.
type Blob struct {
	Digest digest.Digest
	Bytes  int64 // allocated
	// Images are the ids of those that consist of it; none: a pull under way
	// needs it, or it is garbage.
	Images []digest.Digest
}

// Blobs lists the blobs that are on disk, from memory.
func (s *Store) Blobs() []Blob {
	now := s.index.Present()
	owners := map[digest.Digest]map[digest.Digest]bool{}
	for _, e := range now.Entries {
		for _, d := range e.Blobs() {
			if owners[d] == nil {
				owners[d] = map[digest.Digest]bool{}
			}
			owners[d][e.Config.Digest] = true
		}
	}
	var all []Blob
	for d, bytes := range s.blobs.Usage.Each() {
		all = append(all, Blob{Digest: d, Bytes: bytes, Images: slices.Sorted(maps.Keys(owners[d]))})
	}
	return all
}

// Usage returns what images take on disk, in allocated bytes and inodes: blobs, and
// all unpacked layers. It reads memory only.
func (s *Store) Usage() (bytes, inodes int64, err error) {
	bytes, inodes = s.blobs.Usage.Total()
	layers, err := s.cfg.Layers.Layers()
	if err != nil {
		return 0, 0, fmt.Errorf("usage of layers: %w", err)
	}
	for _, d := range layers {
		u, err := s.cfg.Layers.LayerUsage(d)
		if err != nil {
			continue // removed since it was listed
		}
		bytes, inodes = bytes+u.Bytes, inodes+u.Inodes
	}
	return bytes, inodes, nil
}

// Root returns the store's directory, the mount point to report in CRI's ImageFsInfo.
func (s *Store) Root() string { return s.blobs.Root }
