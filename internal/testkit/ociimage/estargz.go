package ociimage

import (
	"bytes"
	"compress/gzip"
	"io"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// addEstargz packs a layer so that it can be read while it is elsewhere.
func (b *Built) addEstargz(plain []byte) (ocispec.Descriptor, digest.Digest, error) {
	blob, err := estargz.Build(io.NewSectionReader(bytes.NewReader(plain), 0, int64(len(plain))),
		estargz.WithChunkSize(64<<10), estargz.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return ocispec.Descriptor{}, "", err
	}
	defer blob.Close()
	packed, err := io.ReadAll(blob)
	if err != nil {
		return ocispec.Descriptor{}, "", err
	}
	d := b.Add(ocispec.MediaTypeImageLayerGzip, packed)
	d.Annotations = map[string]string{estargz.TOCJSONDigestAnnotation: blob.TOCDigest().String()}
	return d, blob.DiffID(), nil
}
