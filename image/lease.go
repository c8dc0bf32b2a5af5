package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

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
	return s.garbage.lease(ctx, name, &ledger.Lease{Until: time.Now().Add(ttl), Digests: digests})
}

// Release ends a lease; one that is not there is fine. What it kept goes with the next
// collection.
func (s *Store) Release(ctx context.Context, name string) error {
	if err := s.calls.begin(); err != nil {
		return err
	}
	defer s.calls.done()
	return s.garbage.lease(ctx, name, nil)
}

// ReleaseSalvaged gives up what is kept of images that were lost to damage.
func (s *Store) ReleaseSalvaged(ctx context.Context) error { return s.Release(ctx, salvageLease) }

// lease puts a lease, or ends it if it is nil.
func (g *garbage) lease(ctx context.Context, name string, l *ledger.Lease) error {
	if err := g.lockSweep(ctx); err != nil {
		return err
	}
	defer g.unlockSweep()
	return g.ledger.PutLease(name, l)
}

const (
	// salvageLease keeps what images that were lost to damage consisted of, so that
	// pulling them again fetches only what is damaged.
	salvageLease = "salvage"
	salvageTime  = 24 * time.Hour
)

// salvage leases the layers that are there, and were once synced with an image, and if blobs are
// kept theirs: without its blob a layer would be fetched again for that. A pull that the machine's
// reset has interrupted leaves layers, too, that must not be believed; the ledger does not know
// those.
func (g *garbage) salvage() error {
	layers, err := g.layers.Layers()
	if err != nil {
		return fmt.Errorf("list layers: %w", err)
	}
	there := make(map[digest.Digest]bool, len(layers))
	for _, d := range layers {
		there[d] = true
	}
	keep := slices.Sorted(maps.Keys(g.ledger.Synced()))
	keep = slices.DeleteFunc(keep, func(d digest.Digest) bool { return !there[d] && !(g.blobs.Kept && g.blobs.Exists(d)) })
	return g.ledger.PutLease(salvageLease, &ledger.Lease{Until: time.Now().Add(salvageTime), Digests: keep})
}

// endLeases drops leases that have ended.
func (g *garbage) endLeases(names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, g.ledger.PutLease(name, nil))
	}
	return errors.Join(errs...)
}
