package image

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

	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
)

// named is one entry of index.json with what it leads to.
type named struct {
	name    reference.Name
	pulled  *moment
	archive preloaded
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

func at(t time.Time) *moment {
	m := &moment{}
	m.at.Store(&t)
	return m
}

func (m *moment) time() time.Time { return *m.at.Load() }

// catalog is all images at one moment. But for when they were pulled it is never changed, only
// replaced, so that readers need no lock.
type catalog struct {
	short   reference.ShortNames
	pinned  pinnedNames
	entries []named
	images  map[digest.Digest]*known
	ids     map[string]digest.Digest // by repo:tag and repo@digest
	list    func() []*known          // by id
}

// known is an image with its entries.
type known struct {
	Image   // but for Pulled, and archives that pin it
	entries []named
}

// view is the image as it is now.
func (k *known) view() Image {
	img := k.Image
	for _, e := range k.entries {
		if t := e.pulled.time(); t.After(img.Pulled) {
			img.Pulled = t
		}
	}
	img.Pinned = img.Pinned || k.isPreloaded()
	return img
}

// change is what makes one catalog of another.
type change struct{ gone, come []named }

func newCatalog(entries []named, short reference.ShortNames, pinned pinnedNames) *catalog {
	return (&catalog{short: short, pinned: pinned}).changed(entries, change{come: entries})
}

// changed is the catalog of other entries. Only the images of those that a change has are looked
// at: most of many images are the same in both.
func (c *catalog) changed(entries []named, ch change) *catalog {
	next := &catalog{short: c.short, pinned: c.pinned, entries: entries, images: maps.Clone(c.images), ids: maps.Clone(c.ids)}
	if next.images == nil {
		next.images, next.ids = map[digest.Digest]*known{}, map[string]digest.Digest{}
	}
	next.list = sync.OnceValue(next.sorted)
	others := map[digest.Digest][]named{} // of the images that change
	for _, e := range slices.Concat(ch.gone, ch.come) {
		if id := e.Config.Digest; others[id] == nil && c.images[id] != nil {
			others[id] = slices.Clone(c.images[id].entries)
		}
	}
	for _, e := range ch.come {
		others[e.Config.Digest] = append(others[e.Config.Digest], e)
	}
	for _, e := range ch.gone {
		others[e.Config.Digest] = slices.DeleteFunc(others[e.Config.Digest], func(o named) bool { return o.pulled == e.pulled })
		delete(next.ids, e.byDigest())
		delete(next.ids, e.name.String())
	}
	for id, es := range others {
		if len(es) == 0 {
			delete(next.images, id)
			continue
		}
		next.images[id] = newKnown(id, es, c.pinned)
		for _, e := range es {
			next.ids[e.byDigest()], next.ids[e.name.String()] = id, id
		}
	}
	return next
}

// newKnown is the image that entries name.
func newKnown(id digest.Digest, entries []named, pinned pinnedNames) *known {
	img := &known{Image: Image{ID: id}, entries: entries}
	newest := entries[0]
	for _, e := range entries {
		if e.pulled.time().After(newest.pulled.time()) {
			newest = e
		}
		img.RepoDigests = append(img.RepoDigests, e.byDigest())
		if e.name.Tag != "" {
			img.RepoTags = append(img.RepoTags, e.name.String())
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
func (e named) byDigest() string { return e.name.Repo + "@" + e.Top.Digest.String() }

// sorted are the images by id.
func (c *catalog) sorted() []*known {
	return slices.SortedFunc(maps.Values(c.images), func(a, b *known) int { return cmp.Compare(a.ID, b.ID) })
}

// named is the entry of a name, and its image; nil if there is none.
func (c *catalog) named(n reference.Name) (named, *known) {
	img := c.images[c.ids[n.String()]]
	if img == nil {
		return named{}, nil
	}
	i := indexOf(img.entries, n)
	if i < 0 {
		return named{}, nil // it is known by this digest, but was pulled by a tag
	}
	return img.entries[i], img
}

// find looks an image up by reference, id or unique part of an id.
func (c *catalog) find(ref string) (*known, error) {
	if hex, ok := reference.IDPrefix(ref); ok && len(hex) == 64 {
		if img := c.images[digest.NewDigestFromEncoded(digest.SHA256, hex)]; img != nil {
			return img, nil
		}
		return nil, fmt.Errorf("%w: no image has the id %s", ErrNotFound, ref)
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
	return nil, fmt.Errorf("%w: %s", ErrNotFound, n)
}

func (c *catalog) byPrefix(ref, hex string) (*known, error) {
	var found *known
	for id, img := range c.images {
		if !strings.HasPrefix(id.Encoded(), hex) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%w: %q is the beginning of more than one image id", ErrInvalidReference, ref)
		}
		found = img
	}
	if found == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, ref)
	}
	return found, nil
}

// with is the catalog after pulls, in their order. A tag that pointed elsewhere moves; its old
// image stays under its digest, because containers may run from it.
func (c *catalog) with(images ...named) (*catalog, change) {
	var ch change
	entries := slices.Grow(slices.Clone(c.entries), len(images))
	for _, e := range images {
		for i := indexOf(entries, e.name); i >= 0; i = indexOf(entries, e.name) {
			old := entries[i]
			entries, ch.gone = slices.Delete(entries, i, i+1), append(ch.gone, old)
			if old.Top.Digest == e.Top.Digest && e.archive == (preloaded{}) {
				e.archive = old.archive
			}
			if old.Top.Digest != e.Top.Digest {
				old.name.Tag, old.name.Digest = "", old.Top.Digest
				old.pulled = at(old.pulled.time())
				if indexOf(entries, old.name) < 0 {
					entries, ch.come = append(entries, old), append(ch.come, old)
				}
			}
		}
		entries, ch.come = append(entries, e), append(ch.come, e)
	}
	return c.changed(entries, ch), ch
}

func indexOf(entries []named, n reference.Name) int {
	return slices.IndexFunc(entries, func(e named) bool { return e.name == n })
}

// without is the catalog without the entries that are meant.
func (c *catalog) without(meant func(named) bool) (*catalog, change) {
	var ch change
	rest := slices.DeleteFunc(slices.Clone(c.entries), func(e named) bool {
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
func (c *catalog) parse(ref string) (reference.Name, error) {
	if c.short != "" && reference.IsShort(ref) {
		n, err := c.short.Parse(ref)
		if _, here := c.ids[n.String()]; err == nil && here {
			return n, nil
		}
	}
	return reference.Parse(ref)
}
