// Package pack gets images ready to leave a store, to registries and in archives. Layers whose
// blobs the store has not kept are packed again from their files.
//
// A [Packer] is for images that leave together; each [Parcel] that it makes holds its blobs and
// layers in the store until it is released. Files are made in a directory of a [Scratch], which
// images on their way into the store use, too.
package pack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/archive"
	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/internal/boundedjson"
)

// Parcel is an image on its way out of the store. What it consists of stays until Release.
type Parcel struct {
	archive.Packed
	// Top is what the image's name means in the store, and Was the manifest there.
	Top ocispec.Descriptor
	Was digest.Digest
	// Notes say what is not as a user may expect.
	Notes []string
	// Release lets the store remove what the parcel consists of.
	Release func() error
}

// Form says what of a parcel is wanted.
type Form int

// The forms.
const (
	AsBlobs Form = iota // manifests and blobs
	AsTars              // configuration and unpacked layers: no blob is needed
)

// Packer gets images ready to leave together. A layer that several of them have, or one has
// twice, is packed again once.
type Packer struct {
	Store
	as Form
	// elsewhere, if not nil, says that a blob is at the destination.
	elsewhere func(ocispec.Descriptor) (bool, error)
	dir       string // of layers that were packed again
	repacked  map[digest.Digest]ocispec.Descriptor
	remove    func()
}

// Archiver makes layers' archives again.
type Archiver interface {
	// Archive writes the archive that a layer was unpacked from, byte for byte and not
	// compressed. Kinds: unpack.ErrDamaged, unpack.ErrNoRecipe.
	Archive(ctx context.Context, diffID digest.Digest, w io.Writer) error
}

// Store is what getting images ready takes of the store.
type Store struct {
	Index *catalog.Index
	Blobs *blobs.Store
	// Pin keeps blobs and layers until what it returns is called.
	Pin func(context.Context, []digest.Digest) (release func() error, err error)
	// AwaitWhole waits until a layer that is being pulled lazily is all there.
	AwaitWhole func(context.Context, digest.Digest) error
	Layers     Archiver
	Limits     unpack.Limits
	Scratch    *Scratch
}

// Packer returns a packer. elsewhere, if not nil, says that a blob is at the destination. Close
// deletes what the packer has packed again.
func (k Store) Packer(as Form, elsewhere func(ocispec.Descriptor) (bool, error)) (*Packer, error) {
	dir, remove, err := k.Scratch.Dir()
	if err != nil {
		return nil, err
	}
	return &Packer{k, as, elsewhere, dir, map[digest.Digest]ocispec.Descriptor{}, remove}, nil
}

// Close deletes what was packed again.
func (k *Packer) Close() { k.remove() }

// Pack gets an image, found by a name or its id, ready. Layers whose blobs the store has not kept
// are packed again for AsBlobs, unless elsewhere has them; then the manifest is another one than
// the image came with, which Notes say. The image's id stays.
func (k *Packer) Pack(ctx context.Context, refOrID string) (*Parcel, error) {
	e, err := k.Index.Present().Entry(refOrID)
	if err != nil {
		return nil, err
	}
	release, err := k.Pin(ctx, append(e.Blobs(), e.Image.RootFS.DiffIDs...))
	if err != nil {
		return nil, err
	}
	p := &Parcel{Release: release}
	if err := k.fill(ctx, p, e); err != nil {
		return nil, errors.Join(err, release())
	}
	return p, nil
}

func (k *Packer) fill(ctx context.Context, p *Parcel, e catalog.Entry) error {
	document, err := k.Blobs.Read(ctx, ocispec.Descriptor{Digest: e.Manifest})
	if err != nil {
		return err
	}
	config, err := k.Blobs.Read(ctx, e.Config)
	if err != nil {
		return err
	}
	doc, err := manifest.Parse(document, "")
	if err != nil {
		return err
	}
	mediaType := doc.Type()
	p.Top, p.Was = e.Top, e.Manifest
	p.Names = []string{e.Name.String()}
	p.Config = e.Config
	p.Manifest = ocispec.Descriptor{MediaType: mediaType, Digest: e.Manifest, Size: int64(len(document))}
	p.Documents = map[digest.Digest][]byte{e.Manifest: document, e.Config.Digest: config}
	repacked := false
	for i, d := range e.Layers {
		l, packed, err := k.layer(ctx, d, e.Image.RootFS.DiffIDs[i])
		if err != nil {
			return err
		}
		if packed {
			repacked = true
			if mediaType == manifest.DockerManifest {
				l.Blob.MediaType = manifest.DockerLayerGzip // podman and CRI-O refuse OCI's in there
			}
		}
		p.Layers = append(p.Layers, l)
	}
	if !repacked {
		return nil
	}
	return p.remake(document)
}

// layer describes one layer as it leaves; packed says that its blob is a new one.
func (k *Packer) layer(ctx context.Context, d ocispec.Descriptor, diffID digest.Digest) (l archive.Layer, packed bool, err error) {
	l = archive.Layer{
		Blob: d, DiffID: diffID,
		Open:     func(context.Context) (io.ReadCloser, error) { return os.Open(k.Blobs.Path(d.Digest)) },
		Unpacked: func(ctx context.Context) (io.ReadCloser, error) { return k.unpackedBlob(ctx, d) },
	}
	_, encrypted := crypt.Encrypted(d.MediaType)
	if encrypted && k.as == AsTars {
		return l, false, fmt.Errorf("layer %s is encrypted, and would leave as plain text in an archive that has only unpacked layers", d.Digest)
	}
	if k.Blobs.Has(d) {
		return l, false, nil
	}
	l.Unpacked = func(ctx context.Context) (io.ReadCloser, error) { return k.rebuilt(ctx, diffID) }
	if k.as == AsTars {
		return l, false, nil
	}
	if k.elsewhere != nil {
		if there, err := k.elsewhere(d); err != nil || there {
			return l, false, err
		}
	}
	if encrypted {
		return l, false, fmt.Errorf("layer %s is encrypted and its blob has not been kept: packed again it would leave as plain text", d.Digest)
	}
	path := filepath.Join(k.dir, diffID.Encoded())
	l.Open = func(context.Context) (io.ReadCloser, error) { return os.Open(path) }
	blob, there := k.repacked[diffID]
	if !there {
		blob, _, err = k.Scratch.Stage(ctx, path, func(ctx context.Context, w io.Writer) error {
			z := gzip.NewWriter(w)
			return errors.Join(k.Rebuild(ctx, diffID, z), z.Close())
		})
		if err != nil {
			return l, false, err
		}
		k.repacked[diffID] = blob
	}
	l.Blob = blob
	return l, true, nil
}

// Rebuild writes a layer's archive.
func (k Store) Rebuild(ctx context.Context, diffID digest.Digest, w io.Writer) error {
	if err := k.AwaitWhole(ctx, diffID); err != nil {
		return err
	}
	return k.Layers.Archive(ctx, diffID, w)
}

// rebuilt is a reader of a layer's archive. Closing it before its end ends the making.
func (k Store) rebuilt(ctx context.Context, diffID digest.Digest) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(k.Rebuild(ctx, diffID, w))
	}()
	return struct {
		io.Reader
		io.Closer
	}{r, closerFunc(func() error {
		cancel()
		err := r.Close()
		<-done
		return err
	})}, nil
}

// closerFunc is a closer that is a function.
type closerFunc func() error

func (f closerFunc) Close() error { return f() }

// unpackedBlob opens a blob's tar archive.
func (k Store) unpackedBlob(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	f, err := os.Open(k.Blobs.Path(d.Digest))
	if err != nil {
		return nil, err
	}
	z, err := unpack.Decompress(ctx, f, k.Limits)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{z, closers{z, f}}, nil
}

// closers closes all of them, in order.
type closers []io.Closer

func (cs closers) Close() error {
	var errs []error
	for _, c := range cs {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// remake replaces the manifest by one with the layers as they are packed now. All
// else in it stays as it is, also what is not known here.
func (p *Parcel) remake(manifest []byte) error {
	var doc map[string]json.RawMessage
	if err := boundedjson.Unmarshal(manifest, &doc); err != nil {
		return err
	}
	layers := make([]ocispec.Descriptor, len(p.Layers))
	for i, l := range p.Layers {
		layers[i] = l.Blob
	}
	var err error
	if doc["layers"], err = json.Marshal(layers); err != nil {
		return err
	}
	data, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	delete(p.Documents, p.Manifest.Digest)
	p.Manifest.Digest, p.Manifest.Size = digest.FromBytes(data), int64(len(data))
	p.Documents[p.Manifest.Digest] = data
	p.Notes = append(p.Notes,
		fmt.Sprintf("the registry's blobs of %s were not kept: its layers are packed again, and its manifest is %s, not %s", p.Names[0],
			p.Manifest.Digest, p.Was))
	return nil
}
