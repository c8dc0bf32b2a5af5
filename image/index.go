package image

import (
	"fmt"
	"iter"
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

// index is which images exist: index.json on disk, and the same as a catalog in memory.
type index struct {
	file      indexFile
	ledger    *ledger.Ledger
	short     reference.ShortNames
	pinned    pinnedNames
	keepBlobs bool

	// now is the present catalog. It is replaced under mu, after index.json has been.
	now      atomic.Pointer[catalog]
	mu       sync.Mutex
	uses     uses // of now's entries
	outdated bool // index.json lacks times of pulls

	enters batch.Batches[[]named] // an image each
}

func newIndex(c *Config, file indexFile, led *ledger.Ledger, entries []named) *index {
	x := &index{file: file, ledger: led, short: c.short(), pinned: c.Pinned, keepBlobs: c.KeepBlobs}
	x.enters.Work = x.enter
	x.now.Store(newCatalog(entries, x.short, x.pinned))
	x.uses.change(change{come: entries}, x.keepBlobs)
	return x
}

// commitLocked makes a catalog the index's, and returns what nothing needs any more after the
// change that it came by. mu is held.
func (x *index) commitLocked(next *catalog, ch change) (needs, error) {
	if err := x.file.save(next.entries); err != nil {
		return needs{}, err
	}
	x.outdated = false
	unneeded := x.uses.change(ch, x.keepBlobs)
	x.now.Store(next)
	return unneeded, nil
}

// add enters an image, under one name or more, whose layers are on the disk.
func (x *index) add(es ...named) (Image, error) {
	if err := x.enters.Do(es); err != nil {
		return Image{}, err
	}
	now, id := x.now.Load(), es[0].Config.Digest
	if now.images[id] == nil { // removed as it came
		now = newCatalog(es, x.short, x.pinned)
	}
	return now.images[id].view(), nil
}

// enter puts images into the index, whose layers are on the disk.
func (x *index) enter(images [][]named) error {
	all := slices.Concat(images...)
	if err := x.ledger.Save(blobsOf(all)); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	_, err := x.commitLocked(x.now.Load().with(all...))
	return err
}

// list returns all images, ordered by id.
func (x *index) list() []Image {
	list := x.now.Load().list()
	all := make([]Image, len(list))
	for i, img := range list {
		all[i] = img.view()
	}
	return all
}

// tag gives an image one more name.
func (x *index) tag(refOrID string, n reference.Name) (Image, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, err := x.now.Load().entry(refOrID)
	if err != nil {
		return Image{}, err
	}
	e.name, e.pulled = n, at(e.pulled.time())
	if _, err := x.commitLocked(x.now.Load().with(e)); err != nil {
		return Image{}, fmt.Errorf("tag image %s: %w", refOrID, err)
	}
	return x.now.Load().images[e.Config.Digest].view(), nil
}

// pulledAgain notes when, if the name names what it is to name.
func (x *index) pulledAgain(n reference.Name, c *manifest.Content) (img Image, ok bool) {
	x.mu.Lock() // against removal
	defer x.mu.Unlock()
	e, k := x.now.Load().named(n)
	if k == nil || e.Top.Digest != c.Top.Digest || e.Top.MediaType != c.Top.MediaType ||
		e.Manifest != c.Manifest || k.Manifest != c.Manifest {
		return Image{}, false
	}
	t := time.Now()
	e.pulled.at.Store(&t)
	x.outdated = true
	return k.view(), true
}

// untag changes the index, and returns what only the names that are gone needed.
func (x *index) untag(what removal) (r Removed, only needs, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.now.Load()
	img, err := now.find(what.ref)
	if err != nil || what.may != nil && !what.may(img.view()) {
		return r, only, err
	}
	meant := now.entriesOf(what.ref, img)
	if what.all {
		meant = img.has
	}
	next, gone := now.without(meant)
	if only, err = x.commitLocked(next, gone); err != nil {
		return r, only, err
	}
	for _, e := range gone.gone {
		r.Names = append(r.Names, e.name.String())
	}
	if next.images[img.ID] == nil {
		r.ID = img.ID
	}
	return r, only, nil
}

// drop takes the entries away that are meant.
func (x *index) drop(meant func(named) bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, err := x.commitLocked(x.now.Load().without(meant))
	return err
}

// close writes what has changed since the last commit. It comes after all other calls.
func (x *index) close() error {
	if x == nil || !x.outdated {
		return nil
	}
	return x.file.save(x.now.Load().entries)
}

// blobsOf are the blobs of the layers of images.
func blobsOf(images []named) iter.Seq[digest.Digest] {
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
