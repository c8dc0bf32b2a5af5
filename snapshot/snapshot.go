// Package snapshot keeps layered root file systems: read-only layers shared by all
// images that contain them, and one writable layer per container over them. It knows
// nothing of registries or CRI.
//
// # Words
//
// A layer is what one archive of an image unpacks to, named by its diff id. A snapshot is
// a root file system made of layers, with what its container wrote. A driver is how both
// are kept: Overlay, EROFS or Native; package driver says what each must do, and one suite of
// tests (conformance*_test.go) holds all of them to it. Changes are what a snapshot has
// that its layers do not, as the archive of a new layer.
//
// # On disk (under the root directory given to New)
//
//	driver                                    name of the driver that made what follows
//	layers/sha256/<hex of the diff id>/fs     unpacked layer, with the driver's markers,
//	                                          or layer.erofs instead
//	layers/sha256/<hex>/recipe                how to make the layer's archive again
//	                                          (package image/unpack), if it was written
//	layers/sha256/<hex>/layer.json            usage; written before the rename that
//	                                          gives the directory its final name
//	snapshots/<container id>/snapshot.json    the record; written first
//	snapshots/<container id>/{fs,work}        what the container wrote; overlay's work
//	quarantine/<hex>.<random>/                layers found damaged, out of use
//	lazy/<hex>/                               layers that are not here yet (layer/lazy.go)
//	staging/<random>/                         layers being unpacked, and what is
//	                                          being deleted; emptied by Start
//	empty/                                    the lower directory of a snapshot
//	                                          without layers
//
// # After a crash
//
// A layer directory with its final name is whole. The caller of Commit makes sure that its content
// is on disk: image/ syncs the file system before it names the image. When it starts, it removes
// layers that no image names.
//
// A snapshot is its record. A crash of this process leaves its mount in place, and
// Start finds it. A reboot does not, and because upper directories are mounted
// "volatile" (no sync at unmount), what is in them then cannot be trusted: such a
// snapshot can be removed, or prepared again if nothing was written to it.
//
// A damaged store starts, with a warning. A layer whose record cannot be read goes to
// quarantine, as does one that is found damaged later. A snapshot whose record cannot be
// read is kept while it is mounted or something was written to it (damaged.go).
//
// # Example
//
//	w, _ := s.NewLayer(ctx)                  // image/ unpacks a tar stream into w.Dir()
//	_ = w.Commit(ctx, diffID) // now HasLayer(diffID)
//	snap, _ := s.Prepare(ctx, id, snapshot.PrepareOptions{Layers: diffIDs, Target: dir})
//	…                                        // the root is mounted at dir
//	_ = s.Changes(ctx, id, archive)          // an archive that unpacks to a new layer
//	_ = s.Remove(ctx, id)                    // unmounted and deleted; idempotent
package snapshot

import (
	"errors"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/snapshot/diff"
	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/layer"
	"github.com/coracle-project/coracle/snapshot/space"
)

// Kinds of error, for errors.Is.
var (
	ErrExists       = errors.New("snapshot already exists")
	ErrNotFound     = errors.New("snapshot not found")
	ErrLayerExists  = layer.ErrExists
	ErrLayerMissing = layer.ErrMissing
	ErrLayerInUse   = layer.ErrInUse
	// ErrDamaged is a layer that is there and cannot be used.
	ErrDamaged = driver.ErrDamaged
	// ErrInvalid is an id, digest or path that cannot name what it should.
	ErrInvalid = diff.ErrInvalid
	// ErrUnsupported is a file system or kernel that cannot hold snapshots, or not
	// such ones.
	ErrUnsupported = diff.ErrUnsupported
	// ErrUnclean is a snapshot that lost its mount after it had been written to.
	ErrUnclean = errors.New("writable layer was lost with its mount")
)

// Usage is space taken on disk.
type Usage = space.Usage

// PrepareOptions describes the root file system of one container.
type PrepareOptions struct {
	// Layers are diff ids, lowest first. Empty means an empty root.
	Layers []digest.Digest
	// Target is the absolute path of the directory that the root is mounted
	// at; it is created if missing.
	Target string
	// Users are the ids that the root shows in place of those on disk; nothing maps
	// none. Layers are still shared: nothing is copied or chowned.
	Users Users
	// Access is ReadWrite if empty.
	Access Access
	// Label is the SELinux label that all files show ("context="); "" for those on disk. Roots that
	// are copies (Native) show those on disk.
	Label string
	// Driver is which of several stores is meant; a Store takes its own, or none.
	Driver DriverName
	// Limit is the most that may be written; a zero field is no limit. Without project
	// quotas on the file system a limit is ErrUnsupported.
	Limit Usage
}

// Access says what may be done to a root.
type Access = driver.Access

// The kinds of access.
const (
	ReadWrite = driver.ReadWrite
	ReadOnly  = driver.ReadOnly
)

// DriverName is a way to keep layers and to make root file systems of them.
type DriverName = driver.Name

// The drivers; package driver says what each is for.
const (
	Overlay = driver.Overlay
	EROFS   = driver.EROFS
	Native  = driver.Native
)

// Markers are how an unpacked layer says what it hides of the layers beneath.
type Markers = driver.Markers

// The forms of markers.
const (
	OverlayMarkers = driver.OverlayMarkers
	FileMarkers    = driver.FileMarkers
)

// Users are the ids of a user namespace, IDMap a range of them.
type (
	Users = driver.Users
	IDMap = driver.IDMap
)

// Snapshot is a mounted root file system.
type Snapshot struct {
	ID     string          `json:"id"`
	Layers []digest.Digest `json:"layers"`
	Target string          `json:"target"` // mount point
	Upper  string          `json:"upper"`  // directory with what the container wrote
	Users  Users           `json:"users,omitzero"`
	Access Access          `json:"access,omitempty"`
	Label  string          `json:"label,omitempty"`
	Limit  Usage           `json:"limit,omitzero"`
	// Project is the id under which the file system counts what was written; 0 none.
	Project uint32 `json:"project,omitempty"`
}

// LayerWriter is one layer being unpacked, LayerView one being read.
type (
	LayerWriter = layer.Writer
	LayerView   = layer.View
)
