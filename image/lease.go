package image

import (
	"context"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/ledger"
	"github.com/coracle-project/coracle/image/reference"
)

// Lease keeps blobs and layers (by their diff ids) from being collected until Release or
// for so long, whichever is first, also over restarts. A lease of the same name is
// replaced. Pulls need none: what they fetch is kept until they end, and what they
// leave at a crash is not wanted.
func (s *Store) Lease(ctx context.Context, name string, ttl time.Duration, digests ...digest.Digest) error {
	if name == "" || ttl <= 0 {
		return fmt.Errorf("lease %q for %s: want a name and a time", name, ttl)
	}
	for _, d := range digests {
		if err := reference.CheckDigest(d); err != nil {
			return fmt.Errorf("lease %q: %w", name, err)
		}
	}
	if err := s.calls.begin(); err != nil {
		return err
	}
	defer s.calls.done()
	return s.garbage.Lease(ctx, name, &ledger.Lease{Until: time.Now().Add(ttl), Digests: digests})
}

// Release ends a lease; one that is not there is fine. What it kept goes with the next
// collection.
func (s *Store) Release(ctx context.Context, name string) error {
	if err := s.calls.begin(); err != nil {
		return err
	}
	defer s.calls.done()
	return s.garbage.Lease(ctx, name, nil)
}

// ReleaseSalvaged gives up what is kept of images that were lost to damage.
func (s *Store) ReleaseSalvaged(ctx context.Context) error {
	return s.Release(ctx, garbage.SalvageLease)
}
