package garbage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/ledger"
)

// Lease puts a lease, or ends it if it is nil.
func (s *Sweeper) Lease(ctx context.Context, name string, l *ledger.Lease) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	return s.ledger.PutLease(name, l)
}

const (
	// SalvageLease keeps what images that were lost to damage consisted of, so that
	// pulling them again fetches only what is damaged.
	SalvageLease = "salvage"
	salvageTime  = 24 * time.Hour
)

// Salvage leases the layers that are there, and were once synced with an image, and if blobs are
// kept theirs: without its blob a layer would be fetched again for that. A pull that the machine's
// reset has interrupted leaves layers, too, that must not be believed; the ledger does not know
// those.
func (s *Sweeper) Salvage() error {
	layers, err := s.layers.Layers()
	if err != nil {
		return fmt.Errorf("list layers: %w", err)
	}
	there := make(map[digest.Digest]bool, len(layers))
	for _, d := range layers {
		there[d] = true
	}
	keep := slices.Sorted(maps.Keys(s.ledger.Synced()))
	keep = slices.DeleteFunc(keep, func(d digest.Digest) bool { return !there[d] && !(s.blobs.Kept && s.blobs.Exists(d)) })
	return s.ledger.PutLease(SalvageLease, &ledger.Lease{Until: time.Now().Add(salvageTime), Digests: keep})
}

// endLeases drops leases that have ended.
func (s *Sweeper) endLeases(names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, s.ledger.PutLease(name, nil))
	}
	return errors.Join(errs...)
}
