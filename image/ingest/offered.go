package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/blobs"
)

// opener opens the blobs that are offered. fs.ErrNotExist: it is in the store, if anywhere.
type opener interface {
	Open(d ocispec.Descriptor) (*os.File, error)
}

// Offered stores and unpacks one offered layer, or joins a call that does.
func (u *Unpacker) Offered(ctx context.Context, d ocispec.Descriptor, diffID digest.Digest, o opener) (joined bool, err error) {
	_, joined, err = u.flight.Do(ctx, layerKey{blob: d.Digest, diffID: diffID}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, u.takeLayer(ctx, d, diffID, o)
	})
	return joined, err
}

// takeLayer stores and unpacks one offered layer.
func (u *Unpacker) takeLayer(ctx context.Context, d ocispec.Descriptor, diffID digest.Digest, o opener) error {
	hasBlob, hasLayer := u.Blobs.Has(d), u.Layers.HasLayer(diffID)
	if hasLayer && u.knows(d.Digest, diffID, hasBlob) {
		return nil
	}
	var rotten error
	if hasBlob {
		err := u.unpackStored(ctx, d, diffID, hasLayer)
		if err == nil {
			u.Ledger.Learn(d.Digest, diffID)
		}
		if !errors.Is(err, blobs.ErrRotten) {
			return err
		}
		u.Log.Warn("stored layer is not used", "blob", d.Digest.String(), "err", err)
		rotten = err
	}
	f, err := o.Open(d)
	if errors.Is(err, fs.ErrNotExist) && hasLayer {
		return nil
	}
	if err != nil {
		return cmp.Or(rotten, err)
	}
	defer f.Close()
	// Also a layer that is there is read: the blob may be offered as another.
	w, err := u.unpack(ctx, f, d, diffID, hasLayer)
	if w != nil {
		defer w.Abort() // nothing after Commit
	}
	if err != nil {
		return err
	}
	if err := u.Blobs.Adopt(f, d); err != nil {
		return fmt.Errorf("store blob %s: %w", d.Digest, err)
	}
	u.Ledger.Learn(d.Digest, diffID)
	if w == nil {
		return nil
	}
	return u.commitLayer(ctx, w, diffID)
}
