package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const recordName = "snapshot.json"

// loadSnapshots reads the records and finds out which of them are mounted.
func (s *Store) loadSnapshots(ctx context.Context) error {
	mounts, err := s.mounts()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.snapshotsDir())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		snap, err := s.readRecord(e.Name())
		if err != nil {
			// The record is written before all else, atomically: without one
			// there is nothing but an empty directory.
			s.log.Warn("dropping a snapshot without a valid record", "snapshot", e.Name(), "error", err)
			if err := s.discard(filepath.Join(s.snapshotsDir(), e.Name())); err != nil {
				return err
			}
			continue
		}
		s.mu.Lock()
		s.addLocked(snap).mounted = slices.Contains(mounts[snap.Upper], snap.Target)
		s.mu.Unlock()
	}
	return s.dropStrays(mounts)
}

func (s *Store) readRecord(id string) (Snapshot, error) {
	if err := checkID(id); err != nil {
		return Snapshot{}, err
	}
	data, err := os.ReadFile(filepath.Join(s.snapshotDir(id), recordName))
	if err != nil {
		return Snapshot{}, err
	}
	var snap Snapshot
	if err := json.Unmarshal(data, &snap); err != nil {
		return Snapshot{}, fmt.Errorf("%s: %w", recordName, err)
	}
	if snap.ID != id || snap.Upper != filepath.Join(s.snapshotDir(id), "fs") {
		return Snapshot{}, fmt.Errorf("%s: belongs to %q in %q", recordName, snap.ID, snap.Upper)
	}
	if err := (PrepareOptions{Layers: snap.Layers, Target: snap.Target}).check(id); err != nil {
		return Snapshot{}, fmt.Errorf("%s: %w", recordName, err)
	}
	return snap, nil
}

// dropStrays unmounts what is mounted from this store and not recorded, or away
// from its target.
func (s *Store) dropStrays(mounts map[string][]string) error {
	for upper, points := range mounts {
		snap, err := s.Get(filepath.Base(filepath.Dir(upper)))
		for _, point := range points {
			if err == nil && point == snap.Target {
				continue
			}
			s.log.Warn("unmounting a snapshot that is not recorded", "upper", upper, "target", point)
			if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmount %s: %w", point, err)
			}
		}
	}
	return nil
}

// mounts returns the mount points of this store's overlays by upper directory.
func (s *Store) mounts() (map[string][]string, error) {
	found := map[string][]string{}
	_, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		if m.FSType != "overlay" {
			return true, false
		}
		if upper := upperOf(m.VFSOptions); strings.HasPrefix(upper, s.snapshotsDir()+"/") {
			found[upper] = append(found[upper], m.Mountpoint)
		}
		return true, false
	})
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return found, nil
}

// upperOf finds the upper directory in an overlay's options.
func upperOf(options string) string {
	for o := range strings.SplitSeq(options, ",") {
		if upper, ok := strings.CutPrefix(o, "upperdir="); ok {
			return unescape(upper)
		}
	}
	return ""
}

// unescape undoes the kernel's \ooo for blanks in /proc files (seq_path_root(3)).
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1:i+4]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(s string) bool {
	return strings.Trim(s, "01234567") == "" && s[0] <= '3'
}

// Recover removes every snapshot whose id is not claimed, and mounts again those
// claimed that are not mounted and that nobody has written to. The error says
// which of the claimed are lost (ErrNotFound, ErrUnclean); the others are fine.
func (s *Store) Recover(ctx context.Context, claimed []string) error {
	keep := make(map[string]bool, len(claimed))
	var errs []error
	for _, id := range claimed {
		keep[id] = true
		if _, err := s.Get(id); err != nil {
			errs = append(errs, err)
		}
	}
	for _, snap := range s.List() {
		if !keep[snap.ID] {
			errs = append(errs, s.Remove(ctx, snap.ID))
			continue
		}
		_, err := s.Prepare(ctx, snap.ID, PrepareOptions{Layers: snap.Layers, Target: snap.Target})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
