package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/damage"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/atomicfile"
)

// annotationPulled is when an index entry was last pulled, RFC 3339. It tells kubelet's
// image garbage collection what is old and steers nothing else.
const annotationPulled = "io.coracle.image.pulled"

// File is the path of index.json.
type File string

// Load reads index.json; a missing one is a store without images. What cannot be
// read or understood is damage; what can be understood is returned.
func (f File) Load() (entries []indexEntry, damaged []error, err error) {
	data, err := damage.ReadFile(string(f))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case damage.OfFile(err):
		return nil, []error{err}, nil
	case err != nil:
		return nil, nil, err
	}
	var index struct {
		Manifests []json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		damaged = append(damaged, err)
	}
	for i, raw := range index.Manifests {
		var m ocispec.Descriptor
		err := json.Unmarshal(raw, &m)
		var e indexEntry
		if err == nil {
			e, err = parseIndexEntry(m)
		}
		if err != nil {
			damaged = append(damaged, fmt.Errorf("entry %d: %w", i, err))
			continue
		}
		entries = append(entries, e)
	}
	return entries, damaged, nil
}

// keep gives a damaged index.json a second name. It has its own, too, until it is replaced, so
// that the next start knows of the damage if this one does not get so far; but what is no file
// cannot have two.
func (f File) keep() (aside string, err error) {
	aside = damage.Aside(string(f))
	if os.Link(string(f), aside) == nil {
		return aside, nil
	}
	return aside, os.Rename(string(f), aside)
}

// indexEntry is a line of index.json.
type indexEntry struct {
	Name    reference.Name
	Top     ocispec.Descriptor
	Pulled  time.Time
	Archive Archive
}

func parseIndexEntry(m ocispec.Descriptor) (indexEntry, error) {
	if err := manifest.CheckDescriptor(m, registry.MaxManifest); err != nil {
		return indexEntry{}, err
	}
	n, err := reference.Parse(m.Annotations[ocispec.AnnotationRefName])
	if err != nil {
		return indexEntry{}, fmt.Errorf("entry %s: %w", m.Digest, err)
	}
	pulled, err := time.Parse(time.RFC3339Nano, m.Annotations[annotationPulled])
	if err != nil {
		return indexEntry{}, fmt.Errorf("entry %s: %w", m.Digest, err)
	}
	archive := preloadedOf(m)
	m.Annotations = nil
	return indexEntry{Name: n, Top: m, Pulled: pulled, Archive: archive}, nil
}

// save replaces index.json, durably: this is the moment when images exist. Each entry is a
// line, made when it changes.
func (f File) save(entries []Entry) error {
	data := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[`, ocispec.MediaTypeImageIndex)
	for i, e := range entries {
		line, err := e.line()
		if err != nil {
			return fmt.Errorf("write index entry %s: %w", e.Name, err)
		}
		if i == 0 {
			data = slices.Grow(data, len(entries)*(len(line)+16))
		} else {
			data = append(data, ',')
		}
		data = append(append(data, '\n'), line...)
	}
	return atomicfile.WriteSync(string(f), append(data, "\n]}\n"...), 0o644)
}

// line is the entry's line of index.json.
func (e Entry) line() ([]byte, error) {
	t := e.Pulled.at.Load()
	if e.Pulled.of == t {
		return e.Pulled.line, nil
	}
	m := e.Top
	m.Annotations = map[string]string{
		ocispec.AnnotationRefName: e.Name.String(),
		annotationPulled:          t.UTC().Format(time.RFC3339Nano),
	}
	e.Archive.annotate(m.Annotations)
	line, err := json.Marshal(m)
	if err == nil {
		e.Pulled.line, e.Pulled.of = line, t
	}
	return line, err
}
