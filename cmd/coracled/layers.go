package main

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/snapshot"
)

// layerStore lets the image store unpack into the snapshot store. Neither package
// knows the other.
type layerStore struct{ *snapshot.Store }

var _ image.LayerStore = layerStore{}

// NewLayer returns the store's layer as the interface that image/ wants.
func (s layerStore) NewLayer(ctx context.Context) (image.LayerWriter, error) {
	w, err := s.Store.NewLayer(ctx)
	if err != nil {
		return nil, err // a nil *LayerWriter would not be a nil interface
	}
	return w, nil
}

// usage is what one layer takes, for the image store's Usage.
func (s layerStore) usage(diffID digest.Digest) (bytes, inodes int64, err error) {
	u, err := s.LayerUsage(diffID)
	return u.Bytes, u.Inodes, err
}
