package image

import (
	"context"
)

// GC removes blobs and layers that no image, pull under way or lease needs.
// Layers that a snapshot uses stay; call GC again when the layer store says that
// one of them is free. Pulls go on meanwhile.
func (s *Store) GC(ctx context.Context) error {
	return s.garbage.CollectAll(ctx)
}

// Collect is GC that returns what it has deleted: allocated bytes.
func (s *Store) Collect(ctx context.Context) (freed int64, err error) {
	if err := s.calls.begin(); err != nil {
		return 0, err
	}
	defer s.calls.done()
	return s.garbage.CollectCounted(ctx)
}
