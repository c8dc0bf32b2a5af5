// Package snapshot keeps layered root file systems on overlayfs: read-only layers
// shared by all images that contain them, and one writable layer per container.
// It knows nothing of registries or CRI.
//
// # On disk (under the root directory given to New)
//
//	layers/sha256/<hex of the diff id>/fs     unpacked layer, overlay whiteouts
//	layers/sha256/<hex>/layer.json            usage; written before the rename that
//	                                          gives the directory its final name
//	snapshots/<container id>/snapshot.json    the record; written first
//	snapshots/<container id>/{fs,work}        overlay's upper and work directories
//	staging/<random>/                         layers being unpacked, and what is
//	                                          being deleted; emptied by Start
//	empty/                                    the lower directory of a snapshot
//	                                          without layers
//
// # After a crash
//
// A layer directory with its final name is whole. Whether its content is on disk
// is the business of whoever commits it: image/ syncs the file system before it
// names the image, and removes layers that no image names when it starts.
//
// A snapshot is its record. A crash of this process leaves its mount in place, and
// Start finds it. A reboot does not, and because upper directories are mounted
// "volatile" (no sync at unmount), what is in them then cannot be trusted: such a
// snapshot can be removed, or prepared again if nothing was written to it.
//
// # Example
//
//	w, _ := s.NewLayer(ctx)                  // image/ unpacks a tar stream into w.Dir()
//	_ = w.Commit(ctx, diffID, bytes, inodes) // now HasLayer(diffID)
//	snap, _ := s.Prepare(ctx, id, snapshot.PrepareOptions{Layers: diffIDs, Target: dir})
//	…                                        // the root is mounted at dir
//	_ = s.Remove(ctx, id)                    // unmounted and deleted; idempotent
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
	// ErrInvalid is an id, digest or path that cannot name what it should.
	ErrInvalid = errors.New("invalid argument")
	// ErrUnsupported is a file system or kernel that cannot hold snapshots.
	ErrUnsupported = errors.New("overlayfs not usable")
	// ErrUnclean is a snapshot that lost its mount after it had been written to.
	ErrUnclean = errors.New("writable layer was lost with its mount")
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
