package image

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
)

// named is one entry of index.json with what it leads to.
type named struct {
	name   name
	pulled *moment
	*content
}

// moment is a time that moves on. A pull that finds all there moves the entry's, and so costs no new
// catalog and no new index.json.
type moment struct{ at atomic.Pointer[time.Time] }

func at(t time.Time) *moment {
	m := &moment{}
	m.at.Store(&t)
	return m
}

func (m *moment) time() time.Time { return *m.at.Load() }

// catalog is all images at one moment. But for when they were pulled it is never changed, only
// replaced, so that readers need no lock.
type catalog struct {
	short   shortNames
	entries []named
	images  map[digest.Digest]*known
	ids     map[string]digest.Digest // by repo:tag and repo@digest
	list    []*known                 // by id
}

// known is an image with its entries.
type known struct {
	Image   // but for Pulled
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
	return img
}

func newCatalog(entries []named, short shortNames, pinned pinnedNames) *catalog {
	c := &catalog{short: short, entries: entries, images: map[digest.Digest]*known{}, ids: map[string]digest.Digest{}}
	for _, e := range entries {
		c.add(e)
	}
	for _, img := range c.images {
		slices.Sort(img.RepoTags)
		slices.Sort(img.RepoDigests)
		img.RepoDigests = slices.Compact(img.RepoDigests)
		img.Pinned = slices.ContainsFunc(img.RepoTags, pinned.has) || slices.ContainsFunc(img.RepoDigests, pinned.has)
		c.list = append(c.list, img)
	}
	slices.SortFunc(c.list, func(a, b *known) int { return cmp.Compare(a.ID, b.ID) })
	return c
}

func (c *catalog) add(e named) {
	id := e.config.Digest
	img, ok := c.images[id]
	if !ok {
		img = &known{Image: Image{ID: id}}
		c.images[id] = img
	}
	if !ok || e.pulled.time().After(img.view().Pulled) {
		img.Manifest, img.Size = e.manifest, e.size()
		img.Layers, img.Config = e.image.RootFS.DiffIDs, e.image.Config
	}
	img.entries = append(img.entries, e)
	byDigest := e.name.repo + "@" + e.top.Digest.String()
	img.RepoDigests = append(img.RepoDigests, byDigest)
	c.ids[byDigest] = id
	if e.name.tag != "" {
		img.RepoTags = append(img.RepoTags, e.name.String())
		c.ids[e.name.String()] = id
	}
}

// named is the entry of a name, and its image; nil if there is none.
func (c *catalog) named(n name) (named, *known) {
	img := c.images[c.ids[n.String()]]
	if img == nil {
		return named{}, nil
	}
	i := slices.IndexFunc(img.entries, func(e named) bool { return e.name == n })
	if i < 0 {
		return named{}, nil // it is known by this digest, but was pulled by a tag
	}
	return img.entries[i], img
}

// find looks an image up by reference, id or unique part of an id.
func (c *catalog) find(ref string) (*known, error) {
	if hex, ok := idPrefix(ref); ok && len(hex) == 64 {
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
	if hex, ok := idPrefix(ref); ok {
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

// with returns the entries after a pull. A tag that pointed elsewhere moves; its old
// image stays under its digest, because containers may run from it.
func (c *catalog) with(e named) []named {
	out := make([]named, 0, len(c.entries)+1)
	seen := map[string]bool{e.name.String(): true}
	for _, old := range c.entries {
		if old.name == e.name && old.top.Digest != e.top.Digest {
			old.name.tag, old.name.digest = "", old.top.Digest
		}
		if seen[old.name.String()] {
			continue
		}
		seen[old.name.String()] = true
		out = append(out, old)
	}
	return append(out, e)
}

// reachable are the blobs and the layers that the images need.
func (c *catalog) reachable() (blobs, layers map[digest.Digest]bool) {
	blobs, layers = map[digest.Digest]bool{}, map[digest.Digest]bool{}
	for _, e := range c.entries {
		for _, d := range e.blobs() {
			blobs[d] = true
		}
		for _, d := range e.image.RootFS.DiffIDs {
			layers[d] = true
		}
	}
	return blobs, layers
}
