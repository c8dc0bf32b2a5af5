package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Content is an image as its documents describe it, from the top descriptor (what
// the name resolved to) down to the layers.
type Content struct {
	Top      ocispec.Descriptor
	Manifest digest.Digest
	Config   ocispec.Descriptor
	Image    *ocispec.Image
	Layers   []ocispec.Descriptor
	// Documents are the verified bytes of top, nested indexes, manifest and config.
	Documents map[digest.Digest][]byte
}

// Reader reads a small blob that must have the descriptor's digest and size. The
// registry is one, the store's own blobs are the other.
type Reader func(ctx context.Context, d ocispec.Descriptor) ([]byte, error)

// Resolve walks from a top document to the image for this machine.
func Resolve(ctx context.Context, top ocispec.Descriptor, data []byte, read Reader) (*Content, error) {
	w := &walk{read: read, c: &Content{Top: top, Documents: map[digest.Digest][]byte{top.Digest: data}}}
	m, err := w.descend(ctx, top, data, 0)
	if err != nil {
		return nil, err
	}
	c := w.c
	c.Config, c.Layers = *m.Config, m.Layers
	config, err := w.document(ctx, c.Config)
	if err != nil {
		return nil, err
	}
	c.Image, err = parseConfig(config, len(c.Layers))
	if err != nil {
		return nil, err
	}
	if PlatformScore(&c.Image.Platform) == 0 {
		return nil, fmt.Errorf("%w: it is for %s", ErrPlatform, PlatformName(&c.Image.Platform))
	}
	return c, nil
}

type walk struct {
	read  Reader
	c     *Content
	reads int
	bytes int64 // of documents, by what their descriptors say, which reading holds them to
}

func (w *walk) document(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
	if data, ok := w.c.Documents[d.Digest]; ok {
		return data, nil
	}
	if w.reads++; w.reads > maxManifestReads {
		return nil, fmt.Errorf("%w: more than %d nested documents", ErrInvalid, maxManifestReads)
	}
	if w.bytes += d.Size; w.bytes > maxDocuments {
		return nil, fmt.Errorf("%w: its indexes, manifest and configuration have more than %d bytes", ErrInvalid, maxDocuments)
	}
	data, err := w.read(ctx, d)
	if err != nil {
		return nil, err
	}
	w.c.Documents[d.Digest] = data
	return data, nil
}

// descend finds the manifest: data's own, or the best of an index.
func (w *walk) descend(ctx context.Context, d ocispec.Descriptor, data []byte, depth int) (*Document, error) {
	doc, err := Parse(data, d.MediaType)
	if err != nil {
		return nil, err
	}
	if !doc.isIndex() {
		w.c.Manifest = d.Digest
		return doc, nil
	}
	if depth >= MaxIndexDepth {
		return nil, fmt.Errorf("%w: indexes nested deeper than %d", ErrInvalid, MaxIndexDepth)
	}
	children := slices.Clone(doc.Manifests)
	children = slices.DeleteFunc(children, func(c ocispec.Descriptor) bool {
		return !IsDocument(c.MediaType) || PlatformScore(c.Platform) == 0
	})
	slices.SortStableFunc(children, func(a, b ocispec.Descriptor) int {
		return cmp.Compare(PlatformScore(b.Platform), PlatformScore(a.Platform))
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
			delete(w.c.Documents, child.Digest)
			continue // an index within this one had nothing for us
		}
		return m, err
	}
	if missing != nil {
		return nil, missing
	}
	return nil, fmt.Errorf("%w: the index offers %s", ErrPlatform, Offered(doc.Manifests))
}

// Offered lists an index's platforms for an error.
func Offered(ms []ocispec.Descriptor) string {
	const most = 16
	s := ""
	for i, m := range ms {
		if i == most {
			return s + ", …"
		}
		if i > 0 {
			s += ", "
		}
		s += PlatformName(m.Platform)
	}
	if s == "" {
		return "nothing"
	}
	return s
}

// PlatformName is a platform as an untrusted document names it, made safe for a terminal.
func PlatformName(p *ocispec.Platform) string {
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

// Blobs are the digests of everything the image keeps under blobs/.
func (c *Content) Blobs() []digest.Digest {
	all := make([]digest.Digest, 0, len(c.Documents)+len(c.Layers))
	for d := range c.Documents {
		all = append(all, d)
	}
	for _, l := range c.Layers {
		all = append(all, l.Digest)
	}
	return all
}

// Forget drops what is not asked for again once it is stored: the documents' bytes
// (their digests stay) and the history.
func (c *Content) Forget() {
	c.Image.History = nil
	for d := range c.Documents {
		c.Documents[d] = nil
	}
}

// Size is config and compressed layers, as catalog.Image.Size.
func (c *Content) Size() int64 {
	n := c.Config.Size
	for _, l := range c.Layers {
		n += l.Size
	}
	return n
}
