// Package catalog knows which images exist: index.json on disk, and the same in memory.
//
// An [Index] changes both, one change at a time, and says which blobs and layers no image needs any
// more. What is in memory is never changed, only replaced: [Index.Present] needs no lock. An
// [Entry] is one name of an image with what its documents say.
package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
)

// Image is one image in the store, a value safe to keep.
type Image struct {
	// ID is the digest of the image's config blob, as CRI's image id.
	ID digest.Digest
	// RepoTags are the normalized names with tag (docker.io/library/busybox:1),
	// RepoDigests those with the digest it was pulled by, both sorted.
	RepoTags, RepoDigests []string
	// Manifest is the digest of the platform's manifest.
	Manifest digest.Digest
	// Size is the sum of config and compressed layers, bytes.
	Size int64
	// Layers are the diff ids, lowest first, as snapshot.PrepareOptions takes them.
	Layers []digest.Digest
	// Config is the image's OCI configuration (user, env, entrypoint, …).
	Config ocispec.ImageConfig
	// Pulled is when it was last pulled.
	Pulled time.Time
	// Pinned says that no collection removes it (Options.Pinned, Entry.Archive).
	Pinned bool
}

// Entry is one entry of index.json with what it leads to.
type Entry struct {
	Name    reference.Name
	Pulled  *moment
	Archive Archive
	*manifest.Content
}

// moment is a time that moves on, of one entry. A pull that finds all there moves it, and so costs
// no new catalog and no new index.json.
type moment struct {
	at atomic.Pointer[time.Time]

	// line is what index.json says of the entry, as of a time. Guarded by index.mu.
	line []byte
	of   *time.Time
}

func At(t time.Time) *moment {
	m := &moment{}
	m.at.Store(&t)
	return m
}

func (m *moment) time() time.Time { return *m.at.Load() }

// Catalog is all images at one moment. But for when they were pulled it is never changed, only
// replaced, so that readers need no lock.
type Catalog struct {
	short   reference.ShortNames
	pinned  Pinned
	Entries []Entry
	images  map[digest.Digest]*Known
	ids     map[string]digest.Digest // by repo:tag and repo@digest
	list    func() []*Known          // by id
}

// Known is an image with its entries.
type Known struct {
	Image   // but for Pulled, and archives that pin it
	entries []Entry
}

// View is the image as it is now.
func (k *Known) View() Image {
	img := k.Image
	for _, e := range k.entries {
		if t := e.Pulled.time(); t.After(img.Pulled) {
			img.Pulled = t
		}
	}
	img.Pinned = img.Pinned || k.isPreloaded()
	return img
}

// change is what makes one catalog of another.
type change struct{ gone, come []Entry }

func newCatalog(entries []Entry, short reference.ShortNames, pinned Pinned) *Catalog {
	return (&Catalog{short: short, pinned: pinned}).changed(entries, change{come: entries})
}

// changed is the catalog of other entries. Only the images of those that a change has are looked
// at: most of many images are the same in both.
func (c *Catalog) changed(entries []Entry, ch change) *Catalog {
	next := &Catalog{short: c.short, pinned: c.pinned, Entries: entries, images: maps.Clone(c.images), ids: maps.Clone(c.ids)}
	if next.images == nil {
		next.images, next.ids = map[digest.Digest]*Known{}, map[string]digest.Digest{}
	}
	next.list = sync.OnceValue(next.sorted)
	others := map[digest.Digest][]Entry{} // of the images that change
	for _, e := range slices.Concat(ch.gone, ch.come) {
		if id := e.Config.Digest; others[id] == nil && c.images[id] != nil {
			others[id] = slices.Clone(c.images[id].entries)
		}
	}
	for _, e := range ch.come {
		others[e.Config.Digest] = append(others[e.Config.Digest], e)
	}
	for _, e := range ch.gone {
		others[e.Config.Digest] = slices.DeleteFunc(others[e.Config.Digest], func(o Entry) bool { return o.Pulled == e.Pulled })
		delete(next.ids, e.byDigest())
		delete(next.ids, e.Name.String())
	}
	for id, es := range others {
		if len(es) == 0 {
			delete(next.images, id)
			continue
		}
		next.images[id] = newKnown(id, es, c.pinned)
		for _, e := range es {
			next.ids[e.byDigest()], next.ids[e.Name.String()] = id, id
		}
	}
	return next
}

// newKnown is the image that entries name.
func newKnown(id digest.Digest, entries []Entry, pinned Pinned) *Known {
	img := &Known{Image: Image{ID: id}, entries: entries}
	newest := entries[0]
	for _, e := range entries {
		if e.Pulled.time().After(newest.Pulled.time()) {
			newest = e
		}
		img.RepoDigests = append(img.RepoDigests, e.byDigest())
		if e.Name.Tag != "" {
			img.RepoTags = append(img.RepoTags, e.Name.String())
		}
	}
	img.Manifest, img.Size = newest.Manifest, newest.Size()
	img.Layers, img.Config = newest.Image.RootFS.DiffIDs, newest.Image.Config
	slices.Sort(img.RepoTags)
	slices.Sort(img.RepoDigests)
	img.RepoDigests = slices.Compact(img.RepoDigests)
	img.Pinned = slices.ContainsFunc(img.RepoTags, pinned.has) || slices.ContainsFunc(img.RepoDigests, pinned.has)
	return img
}

// byDigest is the name that an entry's image has by the digest that it was pulled by.
func (e Entry) byDigest() string { return e.Name.Repo + "@" + e.Top.Digest.String() }

// IsStill is whether now is the image that e was, under the same name or, if that has moved to
// another image since, under its digest.
func (e Entry) IsStill(now Entry) bool {
	return now.Top.Digest == e.Top.Digest && now.Config.Digest == e.Config.Digest && (now.Name == e.Name || now.Name.String() == e.byDigest())
}

// sorted are the images by id.
func (c *Catalog) sorted() []*Known {
	return slices.SortedFunc(maps.Values(c.images), func(a, b *Known) int { return cmp.Compare(a.ID, b.ID) })
}

// named is the entry of a name, and its image; nil if there is none.
func (c *Catalog) named(n reference.Name) (Entry, *Known) {
	img := c.images[c.ids[n.String()]]
	if img == nil {
		return Entry{}, nil
	}
	i := indexOf(img.entries, n)
	if i < 0 {
		return Entry{}, nil // it is known by this digest, but was pulled by a tag
	}
	return img.entries[i], img
}

// Find looks an image up by reference, id or unique part of an id.
func (c *Catalog) Find(ref string) (*Known, error) {
	if hex, ok := reference.IDPrefix(ref); ok && len(hex) == 64 {
		if img := c.images[digest.NewDigestFromEncoded(digest.SHA256, hex)]; img != nil {
			return img, nil
		}
		return nil, fmt.Errorf("%w: no image has the id %s", registry.ErrNotFound, ref)
	}
	n, err := c.parse(ref)
	if err == nil {
		if id, ok := c.ids[n.String()]; ok {
			return c.images[id], nil
		}
	}
	if hex, ok := reference.IDPrefix(ref); ok {
		return c.byPrefix(ref, hex)
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s", registry.ErrNotFound, n)
}

func (c *Catalog) byPrefix(ref, hex string) (*Known, error) {
	var found *Known
	for id, img := range c.images {
		if !strings.HasPrefix(id.Encoded(), hex) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%w: %q is the beginning of more than one image id", reference.ErrInvalid, ref)
		}
		found = img
	}
	if found == nil {
		return nil, fmt.Errorf("%w: %s", registry.ErrNotFound, ref)
	}
	return found, nil
}

// with is the catalog after pulls, in their order. A tag that pointed elsewhere moves; its old
// image stays under its digest, because containers may run from it.
func (c *Catalog) with(images ...Entry) (*Catalog, change) {
	var ch change
	entries := slices.Grow(slices.Clone(c.Entries), len(images))
	for _, e := range images {
		for i := indexOf(entries, e.Name); i >= 0; i = indexOf(entries, e.Name) {
			old := entries[i]
			entries, ch.gone = slices.Delete(entries, i, i+1), append(ch.gone, old)
			if old.Top.Digest == e.Top.Digest && e.Archive == (Archive{}) {
				e.Archive = old.Archive
			}
			if old.Top.Digest != e.Top.Digest {
				old.Name.Tag, old.Name.Digest = "", old.Top.Digest
				old.Pulled = At(old.Pulled.time())
				if indexOf(entries, old.Name) < 0 {
					entries, ch.come = append(entries, old), append(ch.come, old)
				}
			}
		}
		entries, ch.come = append(entries, e), append(ch.come, e)
	}
	return c.changed(entries, ch), ch
}

func indexOf(entries []Entry, n reference.Name) int {
	return slices.IndexFunc(entries, func(e Entry) bool { return e.Name == n })
}

// without is the catalog without the entries that are meant.
func (c *Catalog) without(meant func(Entry) bool) (*Catalog, change) {
	var ch change
	rest := slices.DeleteFunc(slices.Clone(c.Entries), func(e Entry) bool {
		if meant(e) {
			ch.gone = append(ch.gone, e)
			return true
		}
		return false
	})
	return c.changed(rest, ch), ch
}

// parse reads a reference to an image that may be here. A short name is one in the
// configured registry, or what Docker takes it for: nothing is fetched from there.
func (c *Catalog) parse(ref string) (reference.Name, error) {
	if c.short != "" && reference.IsShort(ref) {
		n, err := c.short.Parse(ref)
		if _, here := c.ids[n.String()]; err == nil && here {
			return n, nil
		}
	}
	return reference.Parse(ref)
}

// entriesOf says which index entries what a user wrote means: those of a name, or all
// of an image.
func (c *Catalog) entriesOf(refOrID string, img *Known) func(Entry) bool {
	n, err := c.parse(refOrID)
	hex, isHex := reference.IDPrefix(refOrID)
	if err != nil || isHex && len(hex) == 64 || c.ids[n.String()] != img.ID {
		return img.has
	}
	return func(e Entry) bool {
		return e.Name == n || n.Digest != "" && e.Name.Repo == n.Repo && e.Top.Digest == n.Digest
	}
}

func (img *Known) has(e Entry) bool { return e.Config.Digest == img.ID }

// Entry finds the newest of the index entries that are meant.
func (c *Catalog) Entry(refOrID string) (Entry, error) {
	img, err := c.Find(refOrID)
	if err != nil {
		return Entry{}, err
	}
	var best Entry
	meant := c.entriesOf(refOrID, img)
	for _, e := range c.Entries {
		if meant(e) && (best.Content == nil || e.Pulled.time().After(best.Pulled.time())) {
			best = e
		}
	}
	return best, nil
}
