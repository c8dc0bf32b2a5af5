// Package manifest reads the documents that images consist of: indexes, manifests and
// configurations, of OCI and of Docker.
//
// Parse reads one document, and refuses what clients could understand in two ways. Resolve walks
// from the document that a name stands for to the image for this machine. Both bound what an
// untrusted document can make us read and hold in memory.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/boundedjson"
)

// Kinds of error, for errors.Is.
var (
	ErrInvalid  = registry.ErrInvalid // malformed, ambiguous, or more than is supported
	ErrPlatform = errors.New("no image for this platform")
)

// Docker's media types, next to OCI's in ocispec.
const (
	DockerManifest   = registry.DockerManifest
	DockerIndex      = registry.DockerIndex
	dockerSchema1    = registry.DockerSchema1
	DockerSchema1Sig = registry.DockerSchema1Sig
	DockerConfig     = "application/vnd.docker.container.image.v1+json"
	DockerLayer      = "application/vnd.docker.image.rootfs.diff.tar"
	DockerLayerGzip  = "application/vnd.docker.image.rootfs.diff.tar.gzip"
	DockerLayerZstd  = "application/vnd.docker.image.rootfs.diff.tar.zstd"

	DockerForeignPrefix = "application/vnd.docker.image.rootfs.foreign."
	ociForeignPrefix    = "application/vnd.oci.image.layer.nondistributable."
)

// Limits of what a registry may make us hold in memory.
const (
	maxLayers        = 500 // overlayfs takes no more
	MaxIndexDepth    = 4
	maxManifestReads = 16       // of one pull, over nested indexes
	maxDocuments     = 16 << 20 // bytes of the documents of one image
)

// Document is the union of the JSON documents that name an image; one parse tells which it is.
type Document struct {
	SchemaVersion int                  `json:"schemaVersion"`
	MediaType     string               `json:"mediaType"`
	ArtifactType  string               `json:"artifactType"`
	Config        *ocispec.Descriptor  `json:"config"`
	Layers        []ocispec.Descriptor `json:"layers"`
	Manifests     []ocispec.Descriptor `json:"manifests"`
	FSLayers      json.RawMessage      `json:"fsLayers"` // schema 1
}

func (d *Document) isIndex() bool { return d.Config == nil }

// Type is the media type, also of a document that does not tell it.
func (d *Document) Type() string {
	switch {
	case d.MediaType != "":
		return d.MediaType
	case d.isIndex():
		return ocispec.MediaTypeImageIndex
	}
	return ocispec.MediaTypeImageManifest
}

// Parse reads a manifest or index. mediaType is what the registry or the
// parent's descriptor calls it; it must not contradict the content, since one blob
// with two meanings lets two clients see two images (CVE-2021-41190).
func Parse(data []byte, mediaType string) (*Document, error) {
	if mediaType == dockerSchema1 || mediaType == DockerSchema1Sig {
		return nil, errSchema1
	}
	var d Document
	if err := boundedjson.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("%w: malformed manifest: %w", ErrInvalid, err)
	}
	if d.SchemaVersion == 1 || d.FSLayers != nil {
		return nil, errSchema1
	}
	if d.SchemaVersion != 2 {
		return nil, fmt.Errorf("%w: manifest has schemaVersion %d, want 2", ErrInvalid, d.SchemaVersion)
	}
	kind, known := documentKinds[mediaType]
	if own, ok := documentKinds[d.MediaType]; ok {
		if known && own != kind {
			return nil, fmt.Errorf("%w: manifest calls itself %s but is served as %s", ErrInvalid, d.MediaType, mediaType)
		}
		kind, known = own, true
	} else if d.MediaType != "" {
		return nil, fmt.Errorf("%w: unknown manifest type %q", ErrInvalid, d.MediaType)
	}
	hasImage, hasIndex := d.Config != nil || d.Layers != nil, d.Manifests != nil
	if hasImage == hasIndex {
		return nil, fmt.Errorf("%w: document is neither a manifest nor an index, or both", ErrInvalid)
	}
	if known && (kind == isIndexKind) != hasIndex {
		return nil, fmt.Errorf("%w: content of the manifest contradicts its media type", ErrInvalid)
	}
	if hasIndex {
		return &d, checkIndex(&d)
	}
	return &d, checkManifest(&d)
}

var errSchema1 = fmt.Errorf(
	"%w: manifest is of Docker schema 1, which is obsolete since 2017: push the image again with a current tool", ErrInvalid,
)

type documentKind int

const (
	isManifestKind documentKind = iota
	isIndexKind
)

var documentKinds = map[string]documentKind{
	ocispec.MediaTypeImageManifest: isManifestKind,
	ocispec.MediaTypeImageIndex:    isIndexKind,
	DockerManifest:                 isManifestKind,
	DockerIndex:                    isIndexKind,
}

// IsDocument says whether a media type is that of a manifest or index.
func IsDocument(mediaType string) bool {
	_, known := documentKinds[mediaType]
	return known
}

func checkIndex(d *Document) error {
	for i, m := range d.Manifests {
		if err := CheckDescriptor(m, registry.MaxManifest); err != nil {
			return fmt.Errorf("%w: manifest %d of the index: %w", ErrInvalid, i, err)
		}
	}
	return nil
}

func checkManifest(d *Document) error {
	if d.Config == nil {
		return fmt.Errorf("%w: manifest names no config", ErrInvalid)
	}
	switch d.Config.MediaType {
	case ocispec.MediaTypeImageConfig, DockerConfig:
	default:
		return fmt.Errorf("%w: config is of type %q: this is an artifact, not a container image", ErrInvalid, d.Config.MediaType)
	}
	if err := CheckDescriptor(*d.Config, registry.MaxDocument); err != nil {
		return fmt.Errorf("%w: config: %w", ErrInvalid, err)
	}
	if len(d.Layers) > maxLayers {
		return fmt.Errorf("%w: %d layers, at most %d are supported", ErrInvalid, len(d.Layers), maxLayers)
	}
	for i, l := range d.Layers {
		if err := checkLayerType(l.MediaType); err != nil {
			return fmt.Errorf("%w: layer %d: %w", ErrInvalid, i, err)
		}
		if err := CheckDescriptor(l, 1<<40); err != nil {
			return fmt.Errorf("%w: layer %d: %w", ErrInvalid, i, err)
		}
	}
	return nil
}

func checkLayerType(mediaType string) error {
	plain, _ := crypt.Encrypted(mediaType)
	switch plain {
	case ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
		DockerLayer, DockerLayerGzip, DockerLayerZstd:
		return nil
	}
	if strings.HasPrefix(mediaType, ociForeignPrefix) || strings.HasPrefix(mediaType, DockerForeignPrefix) {
		return fmt.Errorf("foreign layers (%s) live outside the registry and are not fetched", mediaType)
	}
	return fmt.Errorf("unsupported layer type %q", mediaType)
}

// OCILayer is the media type that a layer has in an OCI manifest: clients refuse
// manifests that mix OCI's types with Docker's.
func OCILayer(mediaType string) string {
	for _, t := range [][2]string{
		{DockerLayerGzip, ocispec.MediaTypeImageLayerGzip},
		{DockerLayerZstd, ocispec.MediaTypeImageLayerZstd},
		{DockerLayer, ocispec.MediaTypeImageLayer},
	} {
		if rest, ok := strings.CutPrefix(mediaType, t[0]); ok {
			return t[1] + rest // +encrypted
		}
	}
	return mediaType
}

// CheckDescriptor checks the digest and the size, bytes, of what a document names.
func CheckDescriptor(d ocispec.Descriptor, maxSize int64) error {
	if err := reference.CheckDigest(d.Digest); err != nil {
		return err
	}
	if d.Size < 0 || d.Size > maxSize {
		return fmt.Errorf("size %d of %s is not within 0 and %d", d.Size, d.Digest, maxSize)
	}
	return nil
}

// parseConfig reads an image's configuration and checks that it fits the manifest.
func parseConfig(data []byte, layers int) (*ocispec.Image, error) {
	var c ocispec.Image
	if err := boundedjson.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("%w: malformed config: %w", ErrInvalid, err)
	}
	if len(c.RootFS.DiffIDs) != layers {
		return nil, fmt.Errorf("%w: config lists %d layers, manifest %d", ErrInvalid, len(c.RootFS.DiffIDs), layers)
	}
	for i, d := range c.RootFS.DiffIDs {
		if err := reference.CheckDigest(d); err != nil {
			return nil, fmt.Errorf("%w: diff id of layer %d: %w", ErrInvalid, i, err)
		}
	}
	return &c, nil
}
