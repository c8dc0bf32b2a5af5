package layers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/coracle-project/coracle/snapshot"
)

// mountPrefix begins the ids of snapshots that show an image at a directory. No container has such
// an id.
const mountPrefix = "mount-"

// MountID names the snapshot that shows an image at a clean, absolute path.
func MountID(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return mountPrefix + hex.EncodeToString(sum[:])[:32]
}

// Mounts are the ids of the snapshots with a MountID: they belong to no pod, and have to outlive
// the daemon.
func Mounts(s *snapshot.Store) (ids []string) {
	for _, snap := range s.List() {
		if strings.HasPrefix(snap.ID, mountPrefix) {
			ids = append(ids, snap.ID)
		}
	}
	return ids
}

// RemoveMounts ends all mounts of images.
func (s *Store) RemoveMounts(ctx context.Context) error {
	var errs []error
	for _, id := range Mounts(s.cfg.Node) {
		errs = append(errs, s.cfg.Node.Remove(ctx, id))
	}
	return errors.Join(errs...)
}
