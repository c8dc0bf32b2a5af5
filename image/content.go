package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// content is an image as its documents describe it, from the top descriptor (what
// the name resolved to) down to the layers.
type content struct {
	top      ocispec.Descriptor
	manifest digest.Digest
	config   ocispec.Descriptor
	image    *ocispec.Image
	layers   []ocispec.Descriptor
	// documents are the verified bytes of top, nested indexes, manifest and config.
	documents map[digest.Digest][]byte
}

// reader reads a small blob that must have the descriptor's digest and size. The
// registry is one, the store's own blobs are the other.
type reader func(ctx context.Context, d ocispec.Descriptor) ([]byte, error)

// resolve walks from a top document to the image for this machine.
func resolve(ctx context.Context, top ocispec.Descriptor, data []byte, read reader) (*content, error) {
	w := &walk{read: read, c: &content{top: top, documents: map[digest.Digest][]byte{top.Digest: data}}}
	m, err := w.descend(ctx, top, data, 0)
	if err != nil {
		return nil, err
	}
	c := w.c
	c.config, c.layers = *m.Config, m.Layers
	config, err := w.document(ctx, c.config)
	if err != nil {
		return nil, err
	}
	c.image, err = parseConfig(config, len(c.layers))
	if err != nil {
		return nil, err
	}
	if platformScore(&c.image.Platform) == 0 {
		return nil, fmt.Errorf("%w: it is for %s", ErrPlatform, platformName(&c.image.Platform))
	}
	return c, nil
}

type walk struct {
	read  reader
	c     *content
	reads int
	bytes int64 // of documents, by what their descriptors say, which reading holds them to
}

func (w *walk) document(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
	if data, ok := w.c.documents[d.Digest]; ok {
		return data, nil
	}
	if w.reads++; w.reads > maxManifestReads {
		return nil, fmt.Errorf("%w: more than %d nested documents", ErrInvalidImage, maxManifestReads)
	}
	if w.bytes += d.Size; w.bytes > maxDocuments {
		return nil, fmt.Errorf("%w: its indexes, manifest and configuration have more than %d bytes", ErrInvalidImage, maxDocuments)
	}
	data, err := w.read(ctx, d)
	if err != nil {
		return nil, err
	}
	w.c.documents[d.Digest] = data
	return data, nil
}

// descend finds the manifest: data's own, or the best of an index.
func (w *walk) descend(ctx context.Context, d ocispec.Descriptor, data []byte, depth int) (*document, error) {
	doc, err := parseDocument(data, d.MediaType)
	if err != nil {
		return nil, err
	}
	if !doc.isIndex() {
		w.c.manifest = d.Digest
		return doc, nil
	}
	if depth >= maxIndexDepth {
		return nil, fmt.Errorf("%w: indexes nested deeper than %d", ErrInvalidImage, maxIndexDepth)
	}
	children := slices.Clone(doc.Manifests)
	children = slices.DeleteFunc(children, func(c ocispec.Descriptor) bool {
		_, known := documentKinds[c.MediaType]
		return !known || platformScore(c.Platform) == 0
	})
	slices.SortStableFunc(children, func(a, b ocispec.Descriptor) int {
		return cmp.Compare(platformScore(b.Platform), platformScore(a.Platform))
	})
	var missing error
	for _, child := range children {
		data, err := w.document(ctx, child)
		if errors.Is(err, fs.ErrNotExist) {
			// Archives leave out what is not for the machine that they were saved on,
			// which may have been of another variant.
			missing = cmp.Or(missing, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		m, err := w.descend(ctx, child, data, depth+1)
		if errors.Is(err, ErrPlatform) {
			delete(w.c.documents, child.Digest)
			continue // an index within this one had nothing for us
		}
		return m, err
	}
	if missing != nil {
		return nil, missing
	}
	return nil, fmt.Errorf("%w: the index offers %s", ErrPlatform, offered(doc.Manifests))
}

// offered lists an index's platforms for an error.
func offered(ms []ocispec.Descriptor) string {
	const most = 16
	s := ""
	for i, m := range ms {
		if i == most {
			return s + ", …"
		}
		if i > 0 {
			s += ", "
		}
		s += platformName(m.Platform)
	}
	if s == "" {
		return "nothing"
	}
	return s
}

// platformName is a platform as an untrusted document names it, made safe for a terminal.
func platformName(p *ocispec.Platform) string {
	if p == nil {
		return "an unnamed platform"
	}
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	quoted := fmt.Sprintf("%.60q", s)
	return quoted[1 : len(quoted)-1]
}

// blobs are the digests of everything the image keeps under blobs/.
func (c *content) blobs() []digest.Digest {
	all := make([]digest.Digest, 0, len(c.documents)+len(c.layers))
	for d := range c.documents {
		all = append(all, d)
	}
	for _, l := range c.layers {
		all = append(all, l.Digest)
	}
	return all
}

// forget drops what is not asked for again once it is stored: the documents' bytes
// (their digests stay) and the history.
func (c *content) forget() {
	c.image.History = nil
	for d := range c.documents {
		c.documents[d] = nil
	}
}

// size is config and compressed layers, as Image.Size.
func (c *content) size() int64 {
	n := c.config.Size
	for _, l := range c.layers {
		n += l.Size
	}
	return n
}

// blobsOf are the blobs of the layers of images.
func blobsOf(images []named) iter.Seq[digest.Digest] {
	return func(yield func(digest.Digest) bool) {
		for _, e := range images {
			for _, l := range e.layers {
				if !yield(l.Digest) {
					return
				}
			}
		}
	}
}
