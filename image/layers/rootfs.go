package layers

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/coracle-project/coracle/snapshot"
)

// Prepare makes a root in the store of o.Driver, which gets what it lacks of the layers.
func (s *Store) Prepare(ctx context.Context, id string, o snapshot.PrepareOptions) (snapshot.Snapshot, error) {
	store, err := s.Of(o.Driver)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	if err := s.Bring(ctx, o.Driver, o.Layers); err != nil {
		return snapshot.Snapshot{}, err
	}
	return store.Prepare(ctx, id, o)
}

// Remove removes a snapshot; one that is not there is fine.
func (s *Store) Remove(ctx context.Context, id string) error { return s.having(id).Remove(ctx, id) }

// Usage is what a snapshot takes.
func (s *Store) Usage(ctx context.Context, id string) (snapshot.Usage, error) {
	return s.having(id).Usage(ctx, id)
}

// Changes writes what a container wrote as the archive of a layer.
func (s *Store) Changes(ctx context.Context, id string, to io.Writer) error {
	return s.having(id).Changes(ctx, id, to)
}

// Recover removes every snapshot whose id is not claimed.
func (s *Store) Recover(ctx context.Context, claimed []string) error {
	var errs []error
	for _, store := range s.others() {
		theirs := slices.DeleteFunc(slices.Clone(claimed), func(id string) bool {
			_, err := store.Get(id)
			return err != nil
		})
		claimed = slices.DeleteFunc(slices.Clone(claimed), func(id string) bool { return slices.Contains(theirs, id) })
		errs = append(errs, store.Recover(ctx, theirs))
	}
	return errors.Join(append(errs, s.cfg.Node.Recover(ctx, claimed))...)
}
