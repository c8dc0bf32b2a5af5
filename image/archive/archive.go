// Package archive reads and writes images as tar archives: an OCI image layout (what
// skopeo calls oci-archive), and what `docker save` writes (docker-archive). It knows
// nothing of a store: what it reads lies in a directory of the caller's until Close.
//
// # Reading
//
// Read takes a stream, since archives come from pipes, and a docker-archive has its table of
// contents where it likes. Every file goes to the directory under a number, never under a name from
// the archive; names only look files up. All files are hashed on the way in, so a blob that is not
// what its name or descriptor says is never handed out.
//
//	c, err := archive.Read(ctx, stream, dir, limits)
//	defer c.Close()
//	for _, img := range c.Images {
//		manifest, err := c.Document(ctx, img.Top)
//		file, err := c.Open(layer.Digest)
//	}
//
// A docker-archive has no manifests; Read makes one for each image, of the layers as
// they are in the archive. Its configuration, and so the image's id, stays.
//
// # Writing
//
// WriteOCI and WriteDocker write what the caller describes as Packed. The same images make
// the same bytes.
//
// # Errors
//
// ErrInvalid with one sentence that names the entry, or the reader's and the file
// system's own. A blob that is missing is also fs.ErrNotExist.
package archive

import (
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrInvalid says that an archive is wrong, or none of those known here.
var ErrInvalid = errors.New("invalid archive")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// Bounds of what is kept in memory.
const (
	maxEntries  = 100_000
	maxDocument = 4 << 20 // index.json, manifest.json, manifests
	maxConfig   = 8 << 20
	maxNames    = 16 << 20 // bytes of entries' names
	maxLinks    = 8        // from a link to the file
	maxImages   = 10_000
	maxLayers   = 50_000 // named in manifest.json, of all images
	maxTags     = 5_000  // names of all images
	maxType     = 256    // bytes of a media type
)

// Image is one image of an archive.
type Image struct {
	// Names are those that the archive gives it, as they are there: full names
	// (registry.example/app:1) and, in an OCI layout, bare tags (1). There may be none.
	Names []string
	// Top is the image's manifest or index.
	Top ocispec.Descriptor
	// Platform is what the archive's index says that the image is for; nil: nothing. The
	// blobs of images for other platforms than the one it was saved on are often missing.
	Platform *ocispec.Platform
}

// annotationName is where containerd, buildkit and docker put an image's full name; the
// annotation of the specification is often a tag alone.
const annotationName = "io.containerd.image.name"

// dockerEntry is an element of manifest.json in a docker-archive.
type dockerEntry struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// blobName is where an OCI layout has a blob.
func blobName(d digest.Digest) string {
	return ocispec.ImageBlobsDir + "/" + d.Algorithm().String() + "/" + d.Encoded()
}
