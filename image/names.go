package image

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/catalog"
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
	img, err := s.index.Tag(refOrID, n)
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

// Untag takes one name away, and the image with its last name; by id, the image with
// all its names. Unlike Remove it fails with ErrNotFound if there is nothing to remove.
func (s *Store) Untag(ctx context.Context, refOrID string) (Removed, error) {
	if err := s.calls.begin(); err != nil {
		return Removed{}, err
	}
	defer s.calls.done()
	return s.garbage.Remove(ctx, catalog.Removal{Ref: refOrID})
}

// RemoveIf removes an image with all its names if it may go when nothing can be pulled or tagged
// any more: what it has become since the caller has looked counts. may must not call the store but
// to read. An image that may not go, or is gone, is success, and Removed has no ID.
func (s *Store) RemoveIf(ctx context.Context, id digest.Digest, may func(Image) bool) (Removed, error) {
	if err := s.calls.begin(); err != nil {
		return Removed{}, err
	}
	defer s.calls.done()
	r, err := s.garbage.Remove(ctx, catalog.Removal{Ref: id.String(), May: may})
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return r, err
}
