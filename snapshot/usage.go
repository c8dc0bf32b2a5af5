package snapshot

import (
	"context"
	"fmt"

	"github.com/coracle-project/coracle/snapshot/space"
)

// Usage is what the snapshot's writable layer takes on disk now. With project quotas the
// file system has counted it. Without, it is added up: files that
// come and go meanwhile may be counted or not, and of a tree that is made to be
// unwalkable (millions of directories in deeply nested ones) some may be left out.
func (s *Store) Usage(ctx context.Context, id string) (Usage, error) {
	snap, err := s.Get(id)
	if err != nil {
		return Usage{}, err
	}
	if s.quota != nil && snap.Project != 0 {
		u, _, err := s.quota.Of(snap.Project)
		if err != nil {
			return Usage{}, fmt.Errorf("usage of snapshot %s: %w", id, err)
		}
		return u, nil
	}
	u, err := space.Measure(ctx, snap.Upper)
	if err != nil {
		return Usage{}, fmt.Errorf("usage of snapshot %s: %w", id, err)
	}
	return u, nil
}
