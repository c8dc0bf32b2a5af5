package snapshot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// quarantineTime is how long damaged layers are kept.
const quarantineTime = 7 * 24 * time.Hour

func (s *Store) quarantineDir() string { return filepath.Join(s.root, "quarantine") }

// endQuarantine deletes the damaged copies of a layer that is whole again.
func (s *Store) endQuarantine(diffID digest.Digest) {
	err := s.eachQuarantined(func(d digest.Digest, _ time.Time) bool { return d == diffID })
	if err != nil {
		s.log.Warn("cannot delete a quarantined layer", "layer", diffID.String(), "error", err)
	}
}

// dropOldQuarantine deletes damaged layers that are whole again, or that nobody has asked
// after for long.
func (s *Store) dropOldQuarantine() error {
	return s.eachQuarantined(func(d digest.Digest, since time.Time) bool {
		return s.HasLayer(d) || time.Since(since) > quarantineTime
	})
}

// eachQuarantined deletes the damaged layers that drop says, but none that a snapshot may
// have been made of: a mounted overlay reads its layers' files wherever they are.
func (s *Store) eachQuarantined(drop func(d digest.Digest, since time.Time) bool) error {
	entries, err := os.ReadDir(s.quarantineDir())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // deleted meanwhile
		}
		hex, _, _ := strings.Cut(e.Name(), ".")
		d := digest.NewDigestFromEncoded(digest.SHA256, hex)
		if s.hasSnapshotOf(d) || !drop(d, info.ModTime()) {
			continue
		}
		if err := s.discard(filepath.Join(s.quarantineDir(), e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// hasSnapshotOf says whether a snapshot has a layer, be it damaged or whole again.
func (s *Store) hasSnapshotOf(diffID digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.snapshots {
		if slices.Contains(e.snap.Layers, diffID) {
			return true
		}
	}
	return false
}
