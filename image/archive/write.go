package archive

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Packed is an image to be written.
type Packed struct {
	Names    []string // full names
	Manifest ocispec.Descriptor
	Config   ocispec.Descriptor
	// Documents are the bytes of manifest and configuration.
	Documents map[digest.Digest][]byte
	Layers    []Layer
}

// Layer is a layer to be written, lowest first.
type Layer struct {
	Blob   ocispec.Descriptor
	DiffID digest.Digest
	// Open opens the blob, Unpacked the layer's tar archive.
	Open, Unpacked func(ctx context.Context) (io.ReadCloser, error)
}

// WriteOCI writes an OCI image layout with every blob once.
func WriteOCI(ctx context.Context, w io.Writer, images []Packed) error {
	out := writer{tw: tar.NewWriter(w), have: map[string]bool{}}
	version, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
	for _, img := range images {
		for _, name := range orNone(img.Names) {
			d := img.Manifest
			if name != "" {
				d.Annotations = map[string]string{ocispec.AnnotationRefName: name, annotationName: name}
			}
			index.Manifests = append(index.Manifests, d)
		}
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := out.bytes(ocispec.ImageLayoutFile, version); err != nil {
		return err
	}
	if err := out.bytes(ocispec.ImageIndexFile, data); err != nil {
		return err
	}
	for _, img := range images {
		for _, d := range []ocispec.Descriptor{img.Manifest, img.Config} {
			if err := out.bytes(blobName(d.Digest), img.Documents[d.Digest]); err != nil {
				return err
			}
		}
		for _, l := range img.Layers {
			if err := out.stream(ctx, blobName(l.Blob.Digest), l.Blob.Size, l.Open); err != nil {
				return err
			}
		}
	}
	return out.tw.Close()
}

// orNone is names, or one that is empty.
func orNone(names []string) []string {
	if len(names) == 0 {
		return []string{""}
	}
	return names
}

// WriteDocker writes what `docker save` did before it wrote OCI layouts, and what
// podman and every docker load: layers as plain tar archives. Each is read twice, the
// first time for its size.
func WriteDocker(ctx context.Context, w io.Writer, images []Packed) error {
	out := writer{tw: tar.NewWriter(w), have: map[string]bool{}}
	entries := make([]dockerEntry, 0, len(images))
	for _, img := range images {
		e := dockerEntry{Config: img.Config.Digest.Encoded() + ".json", RepoTags: tagsOnly(img.Names), Layers: []string{}}
		if err := out.bytes(e.Config, img.Documents[img.Config.Digest]); err != nil {
			return err
		}
		for _, l := range img.Layers {
			name := l.DiffID.Encoded() + ".tar"
			e.Layers = append(e.Layers, name)
			if out.have[name] {
				continue
			}
			size, err := length(ctx, l.Unpacked)
			if err != nil {
				return err
			}
			if err := out.stream(ctx, name, size, l.Unpacked); err != nil {
				return err
			}
		}
		entries = append(entries, e)
	}
	data, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	if err := out.bytes(dockerManifestFile, data); err != nil {
		return err
	}
	return out.tw.Close()
}

// tagsOnly leaves out names with digests, which the format has no place for.
func tagsOnly(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return strings.Contains(n, "@") })
}

func length(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) (int64, error) {
	r, err := open(ctx)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return io.Copy(io.Discard, r)
}

// writer writes each name once.
type writer struct {
	tw   *tar.Writer
	have map[string]bool
}

// header starts a file; new is false if it is there already. Owner and times are
// no user's, so that the same images make the same archive.
func (w *writer) header(name string, size int64) (isNew bool, err error) {
	if w.have[name] {
		return false, nil
	}
	w.have[name] = true
	return true, w.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644})
}

func (w *writer) bytes(name string, data []byte) error {
	isNew, err := w.header(name, int64(len(data)))
	if err != nil || !isNew {
		return err
	}
	_, err = w.tw.Write(data)
	return err
}

func (w *writer) stream(ctx context.Context, name string, size int64, open func(context.Context) (io.ReadCloser, error)) error {
	isNew, err := w.header(name, size)
	if err != nil || !isNew {
		return err
	}
	r, err := open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(w.tw, r)
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, expected %d", name, n, size)
	}
	return err
}
