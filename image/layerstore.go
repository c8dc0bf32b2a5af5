package image

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/pack"
)

// LayerStore is where layers are unpacked; layers.Store implements it with snapshot stores. Each
// part of a Store knows one of the parts.
type LayerStore interface {
	ingest.Layers
	garbage.Layers
	LayerUses
	LayerArchiver
	LayerRepair
}

// LayerUses says what keeps a disk full.
type LayerUses interface {
	// InUse says whether something runs from a layer.
	InUse(diffID digest.Digest) bool
	// Flush waits until everything removed before it was called is off the disk.
	Flush(ctx context.Context) error
}

// LayerArchiver makes layers' archives again.
type LayerArchiver interface {
	pack.Archiver
	// ArchiveSize is how many bytes Archive writes. Kinds: the same.
	ArchiveSize(ctx context.Context, diffID digest.Digest) (int64, error)
}

// LayerRepair takes damaged layers and copies out of use.
type LayerRepair interface {
	// Quarantine takes a damaged layer out of use. Containers that run from it go on.
	Quarantine(diffID digest.Digest) error
	// HasCopy says whether there is a copy of a layer for another driver, made when someone wants
	// one.
	HasCopy(diffID digest.Digest) bool
	// CheckCopies reads the copies of a layer: unpack.ErrDamaged if one is not the layer.
	CheckCopies(ctx context.Context, diffID digest.Digest) error
	// DropCopies takes them out of use. Containers that run from them go on.
	DropCopies(diffID digest.Digest) error
}

// LayerWriter is one layer being unpacked.
type LayerWriter = ingest.LayerWriter
