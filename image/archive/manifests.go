package archive

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// understand finds the images among the files. An archive may be both an OCI layout
// and a docker-archive, as docker writes since 25.0; then the layout is what counts,
// since it has manifests, and manifest.json only tells names.
func (c *Contents) understand() error {
	_, docker := c.files[dockerManifestFile]
	_, layout := c.files[ocispec.ImageLayoutFile]
	_, index := c.files[ocispec.ImageIndexFile]
	var err error
	switch {
	case layout && index:
		err = c.layoutImages()
	case docker:
		err = c.dockerImages()
	case index:
		return invalid("it has an %s but no %s", ocispec.ImageIndexFile, ocispec.ImageLayoutFile)
	default:
		return invalid("it is neither a docker-archive (%s) nor an OCI layout (%s); a root file system is imported", dockerManifestFile,
			ocispec.ImageLayoutFile)
	}
	if err != nil {
		return err
	}
	if len(c.Images) == 0 {
		return invalid("it has no image")
	}
	names := 0
	for _, img := range c.Images {
		names += len(img.Names)
	}
	if names > maxTags {
		return invalid("it gives its images more than %d names", maxTags)
	}
	return nil
}

const dockerManifestFile = "manifest.json"

func (c *Contents) layoutImages() error {
	var version ocispec.ImageLayout
	if err := c.parse(ocispec.ImageLayoutFile, &version); err != nil {
		return err
	}
	if version.Version != ocispec.ImageLayoutVersion {
		return invalid("its layout is of version %q, only %s is known", version.Version, ocispec.ImageLayoutVersion)
	}
	var index ocispec.Index
	if err := c.parse(ocispec.ImageIndexFile, &index); err != nil {
		return err
	}
	if len(index.Manifests) > maxImages {
		return invalid("it has more than %d images", maxImages)
	}
	for _, d := range index.Manifests {
		if err := d.Digest.Validate(); err != nil {
			return invalid("digest %q in %s: %w", d.Digest, ocispec.ImageIndexFile, err)
		}
		name := d.Annotations[annotationName]
		if name == "" {
			name = d.Annotations[ocispec.AnnotationRefName]
		}
		if len(d.MediaType) > maxType || d.Size > maxDocument {
			return invalid("%s names %s of %d bytes, which is no manifest", ocispec.ImageIndexFile, d.Digest, d.Size)
		}
		// All else is only the archive's: the store keeps what it is given here.
		platform := d.Platform
		d = ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
		// One image under several names has several lines.
		i := slices.IndexFunc(c.Images, func(img Image) bool { return img.Top.Digest == d.Digest })
		if i < 0 {
			i, c.Images = len(c.Images), append(c.Images, Image{Top: d, Platform: platform})
		}
		if name != "" {
			c.Images[i].Names = append(c.Images[i].Names, name)
		}
	}
	return nil
}

func (c *Contents) dockerImages() error {
	var entries []dockerEntry
	if err := c.parse(dockerManifestFile, &entries); err != nil {
		return err
	}
	if len(entries) > maxImages {
		return invalid("it has more than %d images", maxImages)
	}
	layers := 0
	for _, e := range entries {
		// The manifest made of a short name is many times as long.
		if layers += len(e.Layers); layers > maxLayers {
			return invalid("its images have more than %d layers", maxLayers)
		}
		top, err := c.makeManifest(e)
		if err != nil {
			return err
		}
		c.Images = append(c.Images, Image{Names: e.RepoTags, Top: top})
	}
	return nil
}

// makeManifest makes the manifest that a docker-archive does not have.
func (c *Contents) makeManifest(e dockerEntry) (ocispec.Descriptor, error) {
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Layers: []ocispec.Descriptor{},
	}
	f, err := c.named(e.Config)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: f.digest, Size: f.size}
	for _, name := range e.Layers {
		f, err := c.named(name)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		mediaType, err := LayerType(f.path)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: mediaType, Digest: f.digest, Size: f.size})
	}
	data, err := json.Marshal(m)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	c.made[d.Digest] = data
	return d, nil
}

// LayerType is the media type of a layer in a file, by its first bytes.
func LayerType(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return "", fmt.Errorf("read layer: %w", err)
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return ocispec.MediaTypeImageLayerGzip, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return ocispec.MediaTypeImageLayerZstd, nil
	}
	return ocispec.MediaTypeImageLayer, nil
}
