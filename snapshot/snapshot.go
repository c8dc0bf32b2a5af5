// Package snapshot keeps layered root file systems on overlayfs: read-only layers
// shared by all images that contain them, and one writable layer per container.
// It knows nothing of registries or CRI.
//
// # On disk (under the root directory given to Open)
//
//	layers/sha256/<hex of the diff id>/fs     unpacked layer, overlay whiteouts
//	layers/sha256/<hex>/layer.json            usage; written before the rename that
//	                                          gives the directory its final name
//	staging/<random>/                         layers being unpacked; emptied by Open
//	snapshots/<container id>/{snapshot.json,fs,work}
//
// A layer directory with its final name is whole. Snapshots do not outlive a
// reboot: their upper directories are mounted "volatile" (no sync at unmount),
// and Recover removes those that nobody claims.
//
// # Example
//
//	w, _ := s.NewLayer(ctx)          // image/ unpacks a tar stream into w.Dir()
//	_ = w.Commit(ctx, diffID, usage) // now HasLayer(diffID)
//	snap, _ := s.Prepare(ctx, id, snapshot.PrepareOptions{Layers: diffIDs, Target: dir})
//	…                                // snap.Root is mounted at dir
//	_ = s.Remove(ctx, id)            // unmounted and deleted; idempotent
package snapshot

import (
	"errors"

	"github.com/opencontainers/go-digest"
)

// Kinds of error, for errors.Is.
var (
	ErrExists       = errors.New("snapshot already exists")
	ErrNotFound     = errors.New("snapshot not found")
	ErrLayerMissing = errors.New("layer is not in the store")
	ErrLayerInUse   = errors.New("layer is in use by a snapshot")
)

// Usage is space taken on disk.
type Usage struct {
	Bytes  int64 // allocated bytes (blocks of 512 bytes, hard links counted once)
	Inodes int64
}

// PrepareOptions describes the root file system of one container.
type PrepareOptions struct {
	// Layers are diff ids, lowest first. Empty means an empty root.
	Layers []digest.Digest
	// Target is the absolute path of the directory that the root is mounted
	// at; it is created if missing.
	Target string
}

// Snapshot is a mounted writable root file system.
type Snapshot struct {
	ID     string          `json:"id"`
	Layers []digest.Digest `json:"layers"`
	Target string          `json:"target"` // mount point
	Upper  string          `json:"upper"`  // directory with what the container wrote
}
