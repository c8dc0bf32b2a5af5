package image

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/manifest"
)

// blobs are the files of the layout, counted.
type blobs struct {
	layout
	kept     bool // blobs of layers, too: Config.KeepBlobs
	usage    usage
	unsynced unsynced

	disks disks             // that blobs and layers are on
	syncs batches[struct{}] // of disks
}

func newBlobs(root string, kept bool) *blobs {
	b := &blobs{layout: layout{root}, kept: kept}
	b.syncs.work = func([]struct{}) error { return b.unsynced.during(b.disks.sync) }
	return b
}

// sync returns when everything that has a name now is on the disk.
func (b *blobs) sync() error { return b.syncs.do(struct{}{}) }

// putDocuments stores the documents of an image that are not there already.
func (b *blobs) putDocuments(c *manifest.Content) error {
	for _, d := range slices.Sorted(maps.Keys(c.Documents)) {
		data := c.Documents[d]
		if b.holds(d, data) {
			continue
		}
		done := b.unsynced.begin()
		err := b.put(d, data)
		done()
		if err != nil {
			return fmt.Errorf("store blob %s: %w", d, err)
		}
		b.count(d)
	}
	return nil
}

// enter gives a staged file the name of its blob, and closes it.
func (b *blobs) enter(f *os.File, d digest.Digest) error {
	done := b.unsynced.begin()
	err := b.keep(f, d)
	done()
	if err != nil {
		return fmt.Errorf("store blob %s: %w", d, err)
	}
	b.count(d)
	return nil
}

// adopt gives a staged file the name of its blob, and leaves it the one it has. If blobs
// are not kept there is nothing to do.
func (b *blobs) adopt(f *os.File, d ocispec.Descriptor) error {
	if !b.kept {
		return nil
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	// A damaged one may be there; renaming replaces it, and what is left of the second
	// name if it was this file already goes with the directory.
	second := f.Name() + ".blob"
	if err := os.Link(f.Name(), second); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	done := b.unsynced.begin()
	err := os.Rename(second, b.blob(d.Digest))
	done()
	if err != nil {
		return err
	}
	b.count(d.Digest)
	return nil
}

// count counts a blob that has got its name.
func (b *blobs) count(d digest.Digest) {
	if info, err := os.Stat(b.blob(d)); err == nil {
		b.usage.add(d, allocated(info))
	}
}

// drop deletes a blob.
func (b *blobs) drop(d digest.Digest) error {
	if err := os.Remove(b.blob(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("collect blobs: %w", err)
	}
	b.usage.remove(d)
	return nil
}
