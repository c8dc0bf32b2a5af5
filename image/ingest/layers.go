package ingest

import (
	"context"
	"io"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/unpack"
)

// Layers is where the unpacker puts layers.
type Layers interface {
	// Markers say how layers are unpacked.
	Markers() unpack.Markers
	HasLayer(diffID digest.Digest) bool
	// NewLayer makes an empty staging directory for one layer.
	NewLayer(ctx context.Context) (LayerWriter, error)
}

// LayerWriter is one layer being unpacked. Exactly one of Commit and Abort ends it;
// Abort after Commit does nothing, so it can be deferred.
type LayerWriter interface {
	// Dir is the directory to unpack into.
	Dir() string
	// Recipe creates what unpack.Target.Recipe is written to; closed before Commit.
	Recipe() (io.WriteCloser, error)
	// Commit gives the layer its final name. If another writer was faster the
	// staged copy is dropped and Commit succeeds.
	Commit(ctx context.Context, diffID digest.Digest) error
	Abort() error
}
