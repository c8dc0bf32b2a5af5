package snapshot

import (
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/snapshot/driver"
)

// A snapshot whose record is damaged is kept if a container may run from it or has written to it.
// It can be used where it is mounted, it can be removed, and nothing else: what layers it is made
// of is not known, so all that are there stay until it goes, in quarantine too.

// errDamagedRecord is why there is nothing more to do with such a snapshot.
var errDamagedRecord = errors.New("its record is damaged, and what it is made of is not known; make another container")

// keepDamaged enters a snapshot without a valid record, and says whether there is something to
// keep.
func (s *Store) keepDamaged(id string, points []string) bool {
	if checkID(id) != nil {
		return false // no snapshot's directory
	}
	dir := s.snapshotDir(id)
	if len(points) == 0 {
		untouched, err := s.driver.Untouched(driver.Rootfs{Dir: dir})
		if untouched && err == nil {
			return false
		}
	}
	snap := Snapshot{ID: id, Upper: driver.FilesIn(dir)}
	if len(points) > 0 {
		snap.Target = points[0]
	}
	snap.Project, _ = s.quota.ProjectOf(dir) // or else the next snapshot may have the same
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshots[id] = &entry{snap: snap, layers: s.HoldAll(), damaged: true, mounted: len(points) > 0, points: points}
	return true
}

// checkRecord returns an error for a snapshot of which nothing is known but where it is.
func (s *Store) checkRecord(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.snapshots[id]; e != nil && e.damaged {
		return fmt.Errorf("snapshot %s: %w", id, errDamagedRecord)
	}
	return nil
}

// mayHave says whether a snapshot has a layer, or may have it, be it damaged or whole again.
func (s *Store) mayHave(diffID digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.snapshots {
		if e.damaged || slices.Contains(e.snap.Layers, diffID) {
			return true
		}
	}
	return false
}
