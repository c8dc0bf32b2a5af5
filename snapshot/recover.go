package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/snapshot/driver"
)

const recordName = "snapshot.json"

// records are those of the snapshots, as Start finds them.
type records struct {
	*roots
	readFile func(path string) ([]byte, error)
	log      *slog.Logger
}

// load reads the records and finds out which of them are mounted.
func (r *records) load(ctx context.Context) error {
	mounts, err := r.driver.Mounts(r.snapshotsDir())
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(r.snapshotsDir())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	var w transient.Waits
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		snap, err := transient.Try(&w, func() (Snapshot, error) { return r.read(e.Name()) })
		if err != nil {
			if r.keepDamaged(e.Name(), mounts[e.Name()]) {
				r.log.Warn("a snapshot's record is damaged: it is kept until its container is removed, and all layers with it", "snapshot", e.Name(),
					"err", err)
				continue
			}
			// The record is written before all else: there is nothing yet, or no more.
			r.log.Warn("dropping a snapshot without a valid record", "snapshot", e.Name(), "err", err)
			if err := r.trash.Discard(filepath.Join(r.snapshotsDir(), e.Name())); err != nil {
				r.log.Warn("cannot remove snapshot without a valid record; it stays in place", "snapshot", e.Name(), "err", err)
			}
			continue
		}
		asRecorded(mounts[snap.ID], snap.Target)
		r.index.add(&entry{
			snap: snap, layers: r.index.layers.HoldKnown(snap.Layers), mounted: slices.Contains(mounts[snap.ID], snap.Target),
		})
	}
	r.dropStrays(mounts)
	return nil
}

func (r *records) read(id string) (Snapshot, error) {
	if err := checkID(id); err != nil {
		return Snapshot{}, err
	}
	data, err := r.readFile(filepath.Join(r.snapshotDir(id), recordName))
	if err != nil {
		return Snapshot{}, err
	}
	var snap Snapshot
	if err := json.Unmarshal(data, &snap); err != nil {
		return Snapshot{}, fmt.Errorf("%s: %w", recordName, err)
	}
	if snap.ID != id || snap.Upper != driver.FilesIn(r.snapshotDir(id)) {
		return Snapshot{}, fmt.Errorf("%s: belongs to %q in %q", recordName, snap.ID, snap.Upper)
	}
	if err := snap.options().check(id); err != nil {
		return Snapshot{}, fmt.Errorf("%s: %w", recordName, err)
	}
	return snap, nil
}

// asRecorded gives the mount point that is the target its recorded name: the kernel knows mounts by
// their real paths, and the target's may lead through a symbolic link (/var/run).
func asRecorded(points []string, target string) {
	if len(points) == 0 || slices.Contains(points, target) {
		return
	}
	real, err := filepath.EvalSymlinks(target)
	if err != nil {
		return // nothing is mounted there
	}
	if i := slices.Index(points, real); i >= 0 {
		points[i] = target
	}
}

// dropStrays unmounts what is mounted from this store and not recorded, or away
// from its target.
func (r *records) dropStrays(mounts map[string][]string) {
	for id, points := range mounts {
		known := r.index.pointsOf(id)
		for _, point := range points {
			if slices.Contains(known, point) {
				continue
			}
			r.log.Warn("unmounting a snapshot that is not recorded", "snapshot", id, "target", point)
			if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				r.log.Warn("cannot unmount it", "snapshot", id, "target", point, "err", err)
			}
		}
	}
}

// Recover removes every snapshot whose id is not claimed, and mounts again those
// claimed that are not mounted and that no one has written to. The error says
// which of the claimed are lost (ErrNotFound, ErrUnclean); the others are fine.
func (s *Store) Recover(ctx context.Context, claimed []string) error {
	keep := make(map[string]bool, len(claimed))
	var errs []error
	all := s.List() // what is made later is not for us to judge
	for _, id := range claimed {
		keep[id] = true
		if _, err := s.Get(id); err != nil {
			errs = append(errs, err)
		}
	}
	for _, snap := range all {
		if err := ctx.Err(); err != nil { // callers have given up: claims may have changed
			return errors.Join(append(errs, err)...)
		}
		if !keep[snap.ID] {
			errs = append(errs, s.Remove(ctx, snap.ID))
			continue
		}
		if len(s.pointsOf(snap.ID)) > 0 {
			continue
		}
		if s.checkRecord(snap.ID) != nil {
			errs = append(errs, fmt.Errorf("snapshot %s: %w", snap.ID, unclean(snap)))
			continue
		}
		_, err := s.Prepare(ctx, snap.ID, snap.options())
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
