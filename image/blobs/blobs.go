// Package blobs keeps the files of an image store's OCI layout: blobs under their digests, and
// those on their way in below ingest/. It counts them, and knows which are not on the disk yet.
//
// A blob is staged in ingest/, and gets its name when its digest is right. Sync returns when
// everything that has a name is on the disk.
package blobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/internal/batch"
	"github.com/coracle-project/coracle/internal/ctxio"
)

// Store are the files of the layout, counted.
type Store struct {
	Layout
	Kept     bool // blobs of layers, too: Config.KeepBlobs
	Usage    usage
	unsynced unsynced

	disks disks                   // that blobs and layers are on
	Syncs batch.Batches[struct{}] // of disks
}

// New returns the files below a root, which Create makes.
func New(root string, kept bool) *Store {
	b := &Store{Layout: Layout{root}, Kept: kept}
	b.Syncs.Work = func([]struct{}) error { return b.unsynced.during(b.disks.sync) }
	return b
}

// Sync returns when everything that has a name now is on the disk.
func (b *Store) Sync() error { return b.Syncs.Do(struct{}{}) }

// PutDocuments stores the documents of an image that are not there already.
func (b *Store) PutDocuments(c *manifest.Content) error {
	for _, d := range slices.Sorted(maps.Keys(c.Documents)) {
		data := c.Documents[d]
		if b.Holds(d, data) {
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

// Enter gives a staged file the name of its blob, and closes it.
func (b *Store) Enter(f *os.File, d digest.Digest) error {
	done := b.unsynced.begin()
	err := b.keep(f, d)
	done()
	if err != nil {
		return fmt.Errorf("store blob %s: %w", d, err)
	}
	b.count(d)
	return nil
}

// Adopt gives a staged file the name of its blob, and leaves it the one it has. If blobs
// are not kept there is nothing to do.
func (b *Store) Adopt(f *os.File, d ocispec.Descriptor) error {
	if !b.Kept {
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
	err := os.Rename(second, b.Path(d.Digest))
	done()
	if err != nil {
		return err
	}
	b.count(d.Digest)
	return nil
}

// count counts a blob that has got its name.
func (b *Store) count(d digest.Digest) {
	if info, err := os.Stat(b.Path(d)); err == nil {
		b.Usage.add(d, allocated(info))
	}
}

// Drop deletes a blob.
func (b *Store) Drop(d digest.Digest) error {
	if err := os.Remove(b.Path(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("collect blobs: %w", err)
	}
	b.Usage.remove(d)
	return nil
}

// Stored reads documents from the store if they are there, and else as before.
func (b *Store) Stored(otherwise manifest.Reader) manifest.Reader {
	return func(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
		if data, err := b.Read(ctx, d); err == nil && int64(len(data)) == d.Size {
			return data, nil
		}
		return otherwise(ctx, d)
	}
}

// AddDisk has sync write back the file system of a directory, too.
func (b *Store) AddDisk(dir string) error { return b.disks.add(dir) }

// Close lets the file systems go.
func (b *Store) Close() error { return b.disks.close() }

// Naming comes before a layer gets a name, which Sync has to make sure of, and done after, or when
// it does not.
func (b *Store) Naming() (done func()) { return b.unsynced.begin() }

// AllSynced says whether everything that has a name is on the disk.
func (b *Store) AllSynced() bool { return b.unsynced.nothing() }

// TakeStock counts the blobs that there are.
func (b *Store) TakeStock() error { return b.Usage.count(b.Dir()) }

// ErrRotten is a stored blob that is not what its digest says any more, or cannot be read. It
// may as well not be there: what comes in its stead takes its name.
var ErrRotten = errors.New("stored blob is damaged")

// VerifyFile reads all of a blob.
func VerifyFile(ctx context.Context, f *os.File, d digest.Digest) error {
	h := d.Verifier()
	if _, err := io.Copy(h, ctxio.Reader(ctx, io.NewSectionReader(f, 0, math.MaxInt64))); err != nil {
		return err
	}
	if !h.Verified() {
		return fmt.Errorf("%w: its content has another digest", manifest.ErrInvalid)
	}
	return nil
}
