package image

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Of an archive for several platforms, this machine's image is taken; that of the others
// need not even be there.
func TestLoadSeveralPlatforms(t *testing.T) {
	layer := string(tarOf("f", "1"))
	archived := entries{{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`}}
	blob := func(mediaType string, data []byte, p *ocispec.Platform) ocispec.Descriptor {
		d := digest.FromBytes(data)
		archived = append(archived, struct{ name, data string }{"blobs/sha256/" + d.Encoded(), string(data)})
		return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data)), Platform: p}
	}
	here := ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	config, _ := json.Marshal(ocispec.Image{
		Platform: here,
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromString(layer)}},
	})
	manifest := ocispec.Manifest{
		Config: blob(ocispec.MediaTypeImageConfig, config, nil),
		Layers: []ocispec.Descriptor{blob(ocispec.MediaTypeImageLayer, []byte(layer), nil)},
	}
	manifest.SchemaVersion = 2
	data, _ := json.Marshal(manifest)
	index := ocispec.Index{Manifests: []ocispec.Descriptor{
		{
			MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("absent"), Size: 6,
			Platform: &ocispec.Platform{OS: "linux", Architecture: "s390x"},
		},
		blob(ocispec.MediaTypeImageManifest, data, &here),
	}}
	index.SchemaVersion = 2
	data, _ = json.Marshal(index)
	top := blob(ocispec.MediaTypeImageIndex, data, nil)
	top.Annotations = map[string]string{ocispec.AnnotationRefName: "1.0", "io.containerd.image.name": "registry.example/app:1.0"}
	data, _ = json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{top}})
	archived = append(archived, struct{ name, data string }{"index.json", string(data)})

	s := openStore(t, nil)
	loaded, err := s.Load(t.Context(), archived.tar(), "")
	must(t, err)
	if img := loaded.Images[0]; img.ID != digest.FromBytes(config) || !slices.Equal(img.RepoTags, []string{"registry.example/app:1.0"}) ||
		!strings.HasSuffix(img.RepoDigests[0], string(top.Digest)) {
		t.Errorf("loaded %+v", img)
	}
	if len(loaded.Notes) != 1 || !strings.Contains(loaded.Notes[0], "offers for linux/s390x was left") {
		t.Errorf("notes %q", loaded.Notes)
	}
	s.reopen(t)
	if _, err := s.Get("registry.example/app:1.0"); err != nil {
		t.Error(err)
	}
}

// An archive's own index may list images for other platforms, whose blobs are there or not.
func TestLoadForeignInIndex(t *testing.T) {
	for _, tc := range []struct {
		name  string
		take  func(l *layoutArchive) []ocispec.Descriptor
		notes int
		says  string
	}{
		{"blobs of the other missing", func(l *layoutArchive) []ocispec.Descriptor {
			return []ocispec.Descriptor{absentFor("s390x", ""), l.image(runtime.GOARCH)}
		}, 1, ""},
		{"all blobs there", func(l *layoutArchive) []ocispec.Descriptor {
			return []ocispec.Descriptor{l.image("s390x"), l.image(runtime.GOARCH)}
		}, 1, ""},
		{"nothing for us", func(l *layoutArchive) []ocispec.Descriptor {
			return []ocispec.Descriptor{absentFor("s390x", ""), l.image("riscv64")}
		}, 0, "s390x"},
		{"ours missing", func(l *layoutArchive) []ocispec.Descriptor {
			return []ocispec.Descriptor{absentFor(runtime.GOARCH, "")}
		}, 0, "missing"},
		{"the better variant missing, within an index", func(l *layoutArchive) []ocispec.Descriptor {
			return []ocispec.Descriptor{l.index(absentFor(runtime.GOARCH, "v1"), l.image(runtime.GOARCH), absentFor("s390x", ""))}
		}, 1, ""},
		{"all missing within an index", func(l *layoutArchive) []ocispec.Descriptor {
			return []ocispec.Descriptor{l.index(absentFor(runtime.GOARCH, "v1"), absentFor(runtime.GOARCH, ""))}
		}, 0, "missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := &layoutArchive{entries: entries{{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`}}}
			listed := tc.take(l)
			data, _ := json.Marshal(ocispec.Index{Manifests: listed})
			s := openStore(t, nil)
			loaded, err := s.Load(t.Context(), append(l.entries, entries{{"index.json", string(data)}}...).tar(), "app:1")
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) || s.left(t) != nothingLeft {
					t.Errorf("error %v, want one that says %q; %s", err, tc.says, s.left(t))
				}
				return
			}
			must(t, err)
			if len(loaded.Images) != 1 || len(loaded.Notes) != tc.notes || !strings.Contains(loaded.Notes[0], "linux/s390x") {
				t.Errorf("loaded %+v", loaded)
			}
			s.reopen(t)
			if _, err := s.Get("app:1"); err != nil {
				t.Error(err)
			}
		})
	}
}

// What an archive says of what is left in it is shown on the terminal of who loads it.
func TestLoadNotesAreQuoted(t *testing.T) {
	l := &layoutArchive{entries: entries{{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`}}}
	named := absentFor("s390x", "")
	named.Annotations = map[string]string{ocispec.AnnotationRefName: "\x1b[2Japp\n"}
	data, _ := json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{
		named,
		l.index(absentFor("\x1b]0;title\a", ""), l.image(runtime.GOARCH)),
	}})
	loaded, err := openStore(t, nil).Load(t.Context(), append(l.entries, entries{{"index.json", string(data)}}...).tar(), "app:1")
	must(t, err)
	notes := strings.Join(loaded.Notes, "")
	if len(loaded.Notes) != 2 || strings.ContainsFunc(notes, unicode.IsControl) || !strings.Contains(notes, `\x1b[2Japp\n`) ||
		!strings.Contains(notes, `linux/\x1b]0;title\a`) {
		t.Errorf("notes %q", loaded.Notes)
	}
}

// Regression: an archive of many images for other machines had a note for each, more than an answer
// holds.
func TestLoadNotesAreBounded(t *testing.T) {
	for _, foreign := range []int{maxNotes, maxNotes + 1, maxNotes + 7} {
		l := &layoutArchive{entries: entries{{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`}}}
		listed := []ocispec.Descriptor{l.image(runtime.GOARCH)}
		for i := range foreign {
			listed = append(listed, absentFor("s390x", strconv.Itoa(i)))
		}
		data, _ := json.Marshal(ocispec.Index{Manifests: listed})
		loaded, err := openStore(t, nil).Load(t.Context(), append(l.entries, entries{{"index.json", string(data)}}...).tar(), "app:1")
		must(t, err)
		more := foreign - maxNotes
		if last := loaded.Notes[len(loaded.Notes)-1]; len(loaded.Notes) != maxNotes+min(1, more) ||
			(more > 0) != strings.Contains(last, fmt.Sprintf("of %d more", more)) {
			t.Errorf("%d images: %d notes, the last %q", foreign, len(loaded.Notes), last)
		}
	}
}

// layoutArchive is an OCI layout in the making.
type layoutArchive struct{ entries }

func (l *layoutArchive) blob(mediaType string, content any) ocispec.Descriptor {
	data, ok := content.([]byte)
	if !ok {
		data, _ = json.Marshal(content)
	}
	d := digest.FromBytes(data)
	l.entries = append(l.entries, struct{ name, data string }{"blobs/sha256/" + d.Encoded(), string(data)})
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

// image adds one, and describes it for an index.
func (l *layoutArchive) image(arch string) ocispec.Descriptor {
	p := ocispec.Platform{OS: "linux", Architecture: arch}
	layer := tarOf("f", arch)
	m := ocispec.Manifest{
		Config: l.blob(ocispec.MediaTypeImageConfig,
			ocispec.Image{Platform: p, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}}}),
		Layers: []ocispec.Descriptor{l.blob(ocispec.MediaTypeImageLayer, layer)},
	}
	m.SchemaVersion = 2
	d := l.blob(ocispec.MediaTypeImageManifest, m)
	d.Platform = &p
	return d
}

func (l *layoutArchive) index(ms ...ocispec.Descriptor) ocispec.Descriptor {
	x := ocispec.Index{Manifests: ms}
	x.SchemaVersion = 2
	return l.blob(ocispec.MediaTypeImageIndex, x)
}

func absentFor(arch, variant string) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(arch + variant), Size: 6,
		Platform: &ocispec.Platform{OS: "linux", Architecture: arch, Variant: variant},
	}
}
