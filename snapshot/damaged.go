package snapshot

import (
	"errors"

	"github.com/coracle-project/coracle/snapshot/driver"
)

// A snapshot whose record is damaged is kept if a container may run from it or has written to it.
// It can be used where it is mounted, it can be removed, and nothing else: what layers it is made
// of is not known, so all that are there stay until it goes, in quarantine too.

// errDamagedRecord is why there is nothing more to do with such a snapshot.
var errDamagedRecord = errors.New("its record is damaged, and what it is made of is not known; make another container")

// keepDamaged enters a snapshot without a valid record, and says whether there is something to
// keep.
func (r *records) keepDamaged(id string, points []string) bool {
	if checkID(id) != nil {
		return false // no snapshot's directory
	}
	dir := r.snapshotDir(id)
	if len(points) == 0 {
		untouched, err := r.driver.Untouched(driver.Rootfs{Dir: dir})
		if untouched && err == nil {
			return false
		}
	}
	snap := Snapshot{ID: id, Upper: driver.FilesIn(dir)}
	if len(points) > 0 {
		snap.Target = points[0]
	}
	snap.Project, _ = r.index.quota.ProjectOf(dir) // or else the next snapshot may have the same
	r.index.add(&entry{snap: snap, layers: r.index.layers.HoldAll(), damaged: true, mounted: len(points) > 0, points: points})
	return true
}
