package image

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/reference"
)

// Tag gives an image, found as by Get, one more name: a reference with a tag, or the
// tag latest. A name that another image has is moved to this one, as by a pull.
// Kinds: ErrNotFound, ErrInvalidReference.
func (s *Store) Tag(ctx context.Context, refOrID, ref string) (Image, error) {
	n, err := parseTag(ref)
	if err != nil {
		return Image{}, err
	}
	if err := s.calls.begin(); err != nil {
		return Image{}, err
	}
	defer s.calls.done()
	img, err := s.index.tag(refOrID, n)
	if err != nil {
		return Image{}, err
	}
	return img, faultTagIndexed.At(ctx)
}

// parseTag reads a name that an image is to be given.
func parseTag(ref string) (reference.Name, error) {
	n, err := reference.Parse(ref)
	if err == nil && n.Digest != "" {
		err = fmt.Errorf("%w: %q has a digest, which only a registry can give: name it name:tag", ErrInvalidReference, ref)
	}
	return n, err
}

// Removed is what a removal took away.
type Removed struct {
	Names []string      // index entries that are gone, normalized
	ID    digest.Digest // the image, if it is gone with the last of its names
	Bytes int64         // blobs and unpacked layers that were deleted, allocated
}

// Untag takes one name away, and the image with its last name; by id, the image with
// all its names. Unlike Remove it fails with ErrNotFound if there is nothing to remove.
func (s *Store) Untag(ctx context.Context, refOrID string) (Removed, error) {
	if err := s.calls.begin(); err != nil {
		return Removed{}, err
	}
	defer s.calls.done()
	return s.garbage.takeAway(ctx, removal{ref: refOrID})
}

// RemoveIf removes an image with all its names if it may go when nothing can be pulled or tagged
// any more: what it has become since the caller has looked counts. may must not call the store but
// to read. An image that may not go, or is gone, is success, and Removed has no ID.
func (s *Store) RemoveIf(ctx context.Context, id digest.Digest, may func(Image) bool) (Removed, error) {
	if err := s.calls.begin(); err != nil {
		return Removed{}, err
	}
	defer s.calls.done()
	r, err := s.garbage.takeAway(ctx, removal{ref: id.String(), may: may})
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return r, err
}

// removal says which names are to go.
type removal struct {
	ref string           // a reference or an id
	all bool             // all names of the image, also by one of them
	may func(Image) bool // nil: yes
}

// entriesOf says which index entries what a user wrote means: those of a name, or all
// of an image.
func (c *catalog) entriesOf(refOrID string, img *known) func(named) bool {
	n, err := c.parse(refOrID)
	hex, isHex := reference.IDPrefix(refOrID)
	if err != nil || isHex && len(hex) == 64 || c.ids[n.String()] != img.ID {
		return img.has
	}
	return func(e named) bool {
		return e.name == n || n.Digest != "" && e.name.Repo == n.Repo && e.Top.Digest == n.Digest
	}
}

func (img *known) has(e named) bool { return e.Config.Digest == img.ID }

// entry finds the newest of the index entries that are meant.
func (c *catalog) entry(refOrID string) (named, error) {
	img, err := c.find(refOrID)
	if err != nil {
		return named{}, err
	}
	var best named
	meant := c.entriesOf(refOrID, img)
	for _, e := range c.entries {
		if meant(e) && (best.Content == nil || e.pulled.time().After(best.pulled.time())) {
			best = e
		}
	}
	return best, nil
}
