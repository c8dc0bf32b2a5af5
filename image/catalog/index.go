package catalog

import (
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/ledger"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/internal/batch"
)

// Options say how images are found and kept.
type Options struct {
	Short     reference.ShortNames // of names without a registry
	Pinned    Pinned
	KeepBlobs bool // the blobs of layers are needed, too
}

// Index is which images exist: index.json on disk, and the same as a catalog in memory.
type Index struct {
	file   File
	ledger *ledger.Ledger
	Options

	// now is the present catalog. It is replaced under mu, after index.json has been.
	now      atomic.Pointer[Catalog]
	mu       sync.Mutex
	uses     uses // of now's entries
	outdated bool // index.json lacks times of pulls

	enters batch.Batches[[]Entry] // an image each
}

func New(o Options, file File, led *ledger.Ledger, entries []Entry) *Index {
	x := &Index{file: file, ledger: led, Options: o}
	x.enters.Work = x.enter
	x.now.Store(newCatalog(entries, x.Short, x.Pinned))
	x.uses.change(change{come: entries}, x.KeepBlobs)
	return x
}

// Present is the catalog as it is now.
func (x *Index) Present() *Catalog { return x.now.Load() }

// Busy says whether the index is being changed.
func (x *Index) Busy() bool {
	free := x.mu.TryLock()
	if free {
		x.mu.Unlock()
	}
	return !free
}

// NeedsBlob says whether an image consists of a blob.
func (x *Index) NeedsBlob(d digest.Digest) bool { return x.uses.blob(d) }

// NeedsLayer says whether an image consists of a layer.
func (x *Index) NeedsLayer(d digest.Digest) bool { return x.uses.layer(d) }

// Repair writes the index again, with the images that are whole. The file is kept under another
// name if it is damaged itself.
func (x *Index) Repair(entries []Entry, damaged bool, log *slog.Logger) error {
	if damaged {
		if aside, err := x.file.keep(); err != nil {
			log.Warn("damaged image index is not kept", "err", err)
		} else {
			log.Warn("damaged image index is kept", "file", aside)
		}
	}
	return x.file.save(entries)
}

// commitLocked makes a catalog the index's, and returns what nothing needs any more after the
// change that it came by. mu is held.
func (x *Index) commitLocked(next *Catalog, ch change) (Needs, error) {
	if err := x.file.save(next.Entries); err != nil {
		return Needs{}, err
	}
	x.outdated = false
	unneeded := x.uses.change(ch, x.KeepBlobs)
	x.now.Store(next)
	return unneeded, nil
}

// Add enters an image, under one name or more, whose layers are on the disk.
func (x *Index) Add(es ...Entry) (Image, error) {
	if err := x.enters.Do(es); err != nil {
		return Image{}, err
	}
	now, id := x.now.Load(), es[0].Config.Digest
	if now.images[id] == nil { // removed as it came
		now = newCatalog(es, x.Short, x.Pinned)
	}
	return now.images[id].View(), nil
}

// enter puts images into the index, whose layers are on the disk.
func (x *Index) enter(images [][]Entry) error {
	all := slices.Concat(images...)
	if err := x.ledger.Save(BlobsOf(all)); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	_, err := x.commitLocked(x.now.Load().with(all...))
	return err
}

// List returns all images, ordered by id.
func (x *Index) List() []Image {
	list := x.now.Load().list()
	all := make([]Image, len(list))
	for i, img := range list {
		all[i] = img.View()
	}
	return all
}

// Tag gives an image one more name.
func (x *Index) Tag(refOrID string, n reference.Name) (Image, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, err := x.now.Load().Entry(refOrID)
	if err != nil {
		return Image{}, err
	}
	e.Name, e.Pulled = n, At(e.Pulled.time())
	if _, err := x.commitLocked(x.now.Load().with(e)); err != nil {
		return Image{}, fmt.Errorf("tag image %s: %w", refOrID, err)
	}
	return x.now.Load().images[e.Config.Digest].View(), nil
}

// PulledAgain notes when, if the name names what it is to name.
func (x *Index) PulledAgain(n reference.Name, c *manifest.Content) (img Image, ok bool) {
	x.mu.Lock() // against removal
	defer x.mu.Unlock()
	e, k := x.now.Load().named(n)
	if k == nil || e.Top.Digest != c.Top.Digest || e.Top.MediaType != c.Top.MediaType ||
		e.Manifest != c.Manifest || k.Manifest != c.Manifest {
		return Image{}, false
	}
	t := time.Now()
	e.Pulled.at.Store(&t)
	x.outdated = true
	return k.View(), true
}

// Untag changes the index, and returns what only the names that are gone needed.
func (x *Index) Untag(what Removal) (r Removed, only Needs, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.now.Load()
	img, err := now.Find(what.Ref)
	if err != nil || what.May != nil && !what.May(img.View()) {
		return r, only, err
	}
	meant := now.entriesOf(what.Ref, img)
	if what.All {
		meant = img.has
	}
	next, gone := now.without(meant)
	if only, err = x.commitLocked(next, gone); err != nil {
		return r, only, err
	}
	for _, e := range gone.gone {
		r.Names = append(r.Names, e.Name.String())
	}
	if next.images[img.ID] == nil {
		r.ID = img.ID
	}
	return r, only, nil
}

// Drop takes the entries away that are meant.
func (x *Index) Drop(meant func(Entry) bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, err := x.commitLocked(x.now.Load().without(meant))
	return err
}

// Close writes what has changed since the last commit. It comes after all other calls.
func (x *Index) Close() error {
	if x == nil || !x.outdated {
		return nil
	}
	return x.file.save(x.now.Load().Entries)
}

// BlobsOf are the blobs of the layers of images.
func BlobsOf(images []Entry) iter.Seq[digest.Digest] {
	return func(yield func(digest.Digest) bool) {
		for _, e := range images {
			for _, l := range e.Layers {
				if !yield(l.Digest) {
					return
				}
			}
		}
	}
}

// Removed is what a removal took away.
type Removed struct {
	Names []string      // index entries that are gone, normalized
	ID    digest.Digest // the image, if it is gone with the last of its names
	Bytes int64         // blobs and unpacked layers that were deleted, allocated
}

// Removal says which names are to go.
type Removal struct {
	Ref string           // a reference or an id
	All bool             // all names of the image, also by one of them
	May func(Image) bool // nil: yes
}
