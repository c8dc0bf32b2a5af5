package image

import (
	"encoding/json"
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/boundedjson"
)

// Docker's media types, next to OCI's in ocispec.
const (
	dockerManifest   = registry.DockerManifest
	dockerIndex      = registry.DockerIndex
	dockerSchema1    = registry.DockerSchema1
	dockerSchema1Sig = registry.DockerSchema1Sig
	dockerConfig     = "application/vnd.docker.container.image.v1+json"
	dockerLayer      = "application/vnd.docker.image.rootfs.diff.tar"
	dockerLayerGzip  = "application/vnd.docker.image.rootfs.diff.tar.gzip"
	dockerLayerZstd  = "application/vnd.docker.image.rootfs.diff.tar.zstd"

	dockerForeignPrefix = "application/vnd.docker.image.rootfs.foreign."
	ociForeignPrefix    = "application/vnd.oci.image.layer.nondistributable."
)

// document is the union of the JSON documents that name an image; one parse tells which it is.
type document struct {
	SchemaVersion int                  `json:"schemaVersion"`
	MediaType     string               `json:"mediaType"`
	ArtifactType  string               `json:"artifactType"`
	Config        *ocispec.Descriptor  `json:"config"`
	Layers        []ocispec.Descriptor `json:"layers"`
	Manifests     []ocispec.Descriptor `json:"manifests"`
	FSLayers      json.RawMessage      `json:"fsLayers"` // schema 1
}

func (d *document) isIndex() bool { return d.Config == nil }

// parseDocument reads a manifest or index. mediaType is what the registry or the
// parent's descriptor calls it; it must not contradict the content, since one blob
// with two meanings lets two clients see two images (CVE-2021-41190).
func parseDocument(data []byte, mediaType string) (*document, error) {
	if mediaType == dockerSchema1 || mediaType == dockerSchema1Sig {
		return nil, errSchema1
	}
	var d document
	if err := boundedjson.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("%w: malformed manifest: %w", ErrInvalidImage, err)
	}
	if d.SchemaVersion == 1 || d.FSLayers != nil {
		return nil, errSchema1
	}
	if d.SchemaVersion != 2 {
		return nil, fmt.Errorf("%w: manifest has schemaVersion %d, want 2", ErrInvalidImage, d.SchemaVersion)
	}
	kind, known := documentKinds[mediaType]
	if own, ok := documentKinds[d.MediaType]; ok {
		if known && own != kind {
			return nil, fmt.Errorf("%w: manifest calls itself %s but is served as %s", ErrInvalidImage, d.MediaType, mediaType)
		}
		kind, known = own, true
	} else if d.MediaType != "" {
		return nil, fmt.Errorf("%w: unknown manifest type %q", ErrInvalidImage, d.MediaType)
	}
	hasImage, hasIndex := d.Config != nil || d.Layers != nil, d.Manifests != nil
	if hasImage == hasIndex {
		return nil, fmt.Errorf("%w: document is neither a manifest nor an index, or both", ErrInvalidImage)
	}
	if known && (kind == isIndexKind) != hasIndex {
		return nil, fmt.Errorf("%w: content of the manifest contradicts its media type", ErrInvalidImage)
	}
	if hasIndex {
		return &d, checkIndex(&d)
	}
	return &d, checkManifest(&d)
}

var errSchema1 = fmt.Errorf(
	"%w: manifest is of Docker schema 1, which is obsolete since 2017: push the image again with a current tool", ErrInvalidImage,
)

type documentKind int

const (
	isManifestKind documentKind = iota
	isIndexKind
)

var documentKinds = map[string]documentKind{
	ocispec.MediaTypeImageManifest: isManifestKind,
	ocispec.MediaTypeImageIndex:    isIndexKind,
	dockerManifest:                 isManifestKind,
	dockerIndex:                    isIndexKind,
}

func checkIndex(d *document) error {
	for i, m := range d.Manifests {
		if err := checkDescriptor(m, maxManifestBytes); err != nil {
			return fmt.Errorf("%w: manifest %d of the index: %w", ErrInvalidImage, i, err)
		}
	}
	return nil
}

func checkManifest(d *document) error {
	if d.Config == nil {
		return fmt.Errorf("%w: manifest names no config", ErrInvalidImage)
	}
	switch d.Config.MediaType {
	case ocispec.MediaTypeImageConfig, dockerConfig:
	default:
		return fmt.Errorf("%w: config is of type %q: this is an artifact, not a container image", ErrInvalidImage, d.Config.MediaType)
	}
	if err := checkDescriptor(*d.Config, maxConfigBytes); err != nil {
		return fmt.Errorf("%w: config: %w", ErrInvalidImage, err)
	}
	if len(d.Layers) > maxLayers {
		return fmt.Errorf("%w: %d layers, at most %d are supported", ErrInvalidImage, len(d.Layers), maxLayers)
	}
	for i, l := range d.Layers {
		if err := checkLayerType(l.MediaType); err != nil {
			return fmt.Errorf("%w: layer %d: %w", ErrInvalidImage, i, err)
		}
		if err := checkDescriptor(l, 1<<40); err != nil {
			return fmt.Errorf("%w: layer %d: %w", ErrInvalidImage, i, err)
		}
	}
	return nil
}

func checkLayerType(mediaType string) error {
	plain, _ := crypt.Encrypted(mediaType)
	switch plain {
	case ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
		dockerLayer, dockerLayerGzip, dockerLayerZstd:
		return nil
	}
	if strings.HasPrefix(mediaType, ociForeignPrefix) || strings.HasPrefix(mediaType, dockerForeignPrefix) {
		return fmt.Errorf("foreign layers (%s) live outside the registry and are not fetched", mediaType)
	}
	return fmt.Errorf("unsupported layer type %q", mediaType)
}

// ociLayer is the media type that a layer has in an OCI manifest: clients refuse
// manifests that mix OCI's types with Docker's.
func ociLayer(mediaType string) string {
	for _, t := range [][2]string{
		{dockerLayerGzip, ocispec.MediaTypeImageLayerGzip},
		{dockerLayerZstd, ocispec.MediaTypeImageLayerZstd},
		{dockerLayer, ocispec.MediaTypeImageLayer},
	} {
		if rest, ok := strings.CutPrefix(mediaType, t[0]); ok {
			return t[1] + rest // +encrypted
		}
	}
	return mediaType
}

func checkDescriptor(d ocispec.Descriptor, maxSize int64) error {
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
		return nil, fmt.Errorf("%w: malformed config: %w", ErrInvalidImage, err)
	}
	if len(c.RootFS.DiffIDs) != layers {
		return nil, fmt.Errorf("%w: config lists %d layers, manifest %d", ErrInvalidImage, len(c.RootFS.DiffIDs), layers)
	}
	for i, d := range c.RootFS.DiffIDs {
		if err := reference.CheckDigest(d); err != nil {
			return nil, fmt.Errorf("%w: diff id of layer %d: %w", ErrInvalidImage, i, err)
		}
	}
	return &c, nil
}
