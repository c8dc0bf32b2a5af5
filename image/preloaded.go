package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// preloaded is the archive that an image was loaded from to be on this machine without a registry,
// as it was then. No collection removes the image while that file is unchanged.
type preloaded struct {
	file    string
	changed int64 // nanoseconds since 1970
}

// annotationPreloaded is the archive of an index entry: the time of its last change, and its path.
const annotationPreloaded = "io.coracle.image.preloaded"

// preloadedFrom is an archive as it is now; none if file is empty.
func preloadedFrom(file string) (preloaded, error) {
	if file == "" {
		return preloaded{}, nil
	}
	if !filepath.IsAbs(file) {
		return preloaded{}, fmt.Errorf("%w: archive %q is no absolute path", ErrInvalidImage, file)
	}
	st, err := os.Stat(file)
	if err != nil {
		return preloaded{}, err
	}
	return preloaded{file, st.ModTime().UnixNano()}, nil
}

// pins says whether the archive is still what it was. It counts as that while it cannot be looked
// at, as on a file system that fails: without a registry, an image that is collected does not come
// back.
func (p preloaded) pins() bool {
	if p.file == "" {
		return false
	}
	now, err := preloadedFrom(p.file)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) // a directory above it may be a file now
	}
	return now == p
}

// annotate adds the archive to an entry of the index.
func (p preloaded) annotate(to map[string]string) {
	if p.file != "" {
		to[annotationPreloaded] = strconv.FormatInt(p.changed, 10) + " " + p.file
	}
}

// preloadedOf reads what annotate has written. What it does not understand pins nothing.
func preloadedOf(m ocispec.Descriptor) preloaded {
	changed, file, _ := strings.Cut(m.Annotations[annotationPreloaded], " ")
	at, err := strconv.ParseInt(changed, 10, 64)
	if err != nil || !filepath.IsAbs(file) {
		return preloaded{}
	}
	return preloaded{file, at}
}

// isPreloaded says whether an archive pins the image.
func (k *known) isPreloaded() bool {
	for i := range k.entries {
		if k.entries[i].archive.pins() {
			return true
		}
	}
	return false
}
