// Package image pulls images from registries and keeps them: references, blobs
// in an OCI image layout, unpacked layers (handed to a LayerStore), removal with
// garbage collection. It knows nothing of containers or CRI types.
//
// A Store is a facade over parts, each with its own lock and its own dependencies:
//
//	lazy.go      lazies: layers that are shown before they are downloaded
//	pull.go      puller: images from registries, and who waits for them
//	add.go       adder: images from archives, and images made here
//	highwater.go reclaimer: room on a disk that is too full
//	shares.go    shares: what other nodes may fetch from this one
//	calls.go     calls: what Close waits for
//
// and of packages below: catalog (which images exist), blobs, manifest (documents), ingest (layers
// on their way in), pack (images on their way out) and garbage (pins, leases, and the removal of
// what nothing needs).
//
// # On disk (under the root directory given to Open)
//
//	oci-layout, index.json, blobs/sha256/<hex>   an OCI image layout
//	ingest/<random>                              blobs being fetched; emptied by Open
//
// index.json is the one source of truth of which images exist: a manifest
// descriptor per (name, digest) with the annotation
// org.opencontainers.image.ref.name. The file is replaced atomically. Each entry is one line, which
// is encoded again only when the entry changes. Everything else is read from the blobs at Open and
// kept in memory.
//
// # Durability
//
// When Pull has returned, a machine reset keeps the image whole: the blobs and
// unpacked layers are synced (one syncfs per file system) before index.json names
// the image. Pulled data that no index entry reaches is removed at Open. A pull that finds all
// there writes and syncs nothing; that it took place is written with the next change of the
// index, or by Close.
package image

import (
	"errors"

	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/image/trust"
)

// Kinds of error, for errors.Is. The text says which reference and registry.
var (
	ErrNotFound         = registry.ErrNotFound
	ErrInvalidReference = reference.ErrInvalid
	ErrUnauthorized     = registry.ErrUnauthorized
	ErrUnavailable      = registry.ErrUnavailable
	ErrInvalidImage     = registry.ErrInvalid // malformed manifest, wrong digest, escaping layer…
	ErrPlatform         = manifest.ErrPlatform
	ErrUntrusted        = trust.ErrUntrusted // the signature policy does not let it through
	ErrNoKey            = crypt.ErrNoKey     // it is encrypted, and not for this node
	ErrLayerInUse       = errors.New("layer in use")
)

// Image is one image in the store.
type Image = catalog.Image

// Removed is what a removal took away.
type Removed = catalog.Removed

// Auth is the credentials for one pull.
type Auth = registry.Auth

// LayerProgress is how far one layer of a pull is.
type LayerProgress = ingest.LayerProgress

// PullOptions are the choices of one pull.
type PullOptions struct {
	Auth Auth
	// Progress, if not nil, is called from one goroutine at a time with the
	// bytes fetched so far and expected in all.
	Progress func(done, total int64)
	// Layer, if not nil, is called in the same way with what has changed of one layer.
	Layer func(LayerProgress)
}
