package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/coracle-project/coracle/image/unpack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// packed is an image of one layer; names may be none.
func packed(layer string, names ...string) Packed {
	plain := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(layer)), nil }
	p := Packed{Names: names, Documents: map[digest.Digest][]byte{}}
	doc := func(mediaType string, v any) ocispec.Descriptor {
		data, _ := json.Marshal(v)
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		p.Documents[d.Digest] = data
		return d
	}
	id := digest.FromString(layer)
	p.Config = doc(ocispec.MediaTypeImageConfig, ocispec.Image{RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{id}}})
	blob := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: id, Size: int64(len(layer))}
	p.Manifest = doc(ocispec.MediaTypeImageManifest, ocispec.Manifest{Config: p.Config, Layers: []ocispec.Descriptor{blob}})
	p.Layers = []Layer{{Blob: blob, DiffID: id, Open: plain, Unpacked: plain}}
	return p
}

func read(t testing.TB, r io.Reader) (*Contents, error) {
	t.Helper()
	dir := t.TempDir()
	c, err := Read(t.Context(), r, dir, unpack.Limits{})
	t.Cleanup(func() {
		if c != nil {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return c, err
}

func TestRoundTrip(t *testing.T) {
	images := []Packed{packed("one", "a:1", "b:1"), packed("two", "c@sha256:x"), packed("one")}
	var oci, docker, zipped bytes.Buffer
	if err := errors.Join(WriteOCI(t.Context(), &oci, images), WriteDocker(t.Context(), &docker, images)); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(oci.Bytes())
	_ = z.Close()

	for name, in := range map[string]*bytes.Buffer{"oci": &oci, "oci.gz": &zipped} {
		c, err := read(t, in)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Images) != 2 || !slices.Equal(c.Images[0].Names, []string{"a:1", "b:1"}) || c.Images[1].Top.Digest != images[1].Manifest.Digest {
			t.Errorf("%s: %+v", name, c.Images)
		}
		f, err := c.Open(images[1].Layers[0].Blob)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(f); err != nil || string(data) != "two" {
			t.Errorf("layer %q, %v", data, err)
		}
		_ = f.Close()
	}
	c, err := read(t, &docker)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Images) != 3 || !slices.Equal(c.Images[0].Names, []string{"a:1", "b:1"}) || len(c.Images[1].Names) != 0 {
		t.Errorf("docker: %+v", c.Images)
	}
	data, err := c.Document(t.Context(), c.Images[1].Top)
	var m ocispec.Manifest
	if err := errors.Join(err, json.Unmarshal(data, &m)); err != nil || m.Config.Digest != images[1].Config.Digest ||
		m.Layers[0].Digest != digest.FromString("two") {
		t.Errorf("made manifest %s, %v", data, err)
	}
}

// entry is one of an archive that no one should write.
type entry struct {
	name, data string
	link       string
	kind       byte
}

func makeTar(es ...entry) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range es {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Linkname: e.link, Size: int64(len(e.data))}
		switch {
		case e.kind != 0:
			h.Typeflag = e.kind
		case e.link != "":
			h.Typeflag = tar.TypeSymlink
		}
		_ = w.WriteHeader(h)
		_, _ = w.Write([]byte(e.data))
	}
	_ = w.Close()
	return &b
}

const (
	layoutFile = `{"imageLayoutVersion":"1.0.0"}`
	oneImage   = `[{"Config":"c.json","RepoTags":["a:1"],"Layers":["l/layer.tar"]}]`
)

func TestRefused(t *testing.T) {
	blob := "blobs/sha256/" + digest.FromString("x").Encoded()
	index := func(digest string) entry {
		return entry{name: "index.json", data: `{"schemaVersion":2,"manifests":[{"digest":"` + digest + `","size":1}]}`}
	}
	for _, tc := range []struct {
		name string
		in   []entry
		says string
	}{
		{"nothing", nil, "neither"},
		{"a root file system", []entry{{name: "bin/sh", data: "x"}}, "is imported"},
		{"a way out", []entry{{name: "../../etc/passwd", data: "x"}}, "leads out"},
		{"a link out", []entry{{name: "l/layer.tar", link: "../../../x"}}, "leads out"},
		{"a device", []entry{{name: "dev", kind: tar.TypeChar}}, "only files"},
		{"a wrong digest", []entry{{name: blob, data: "y"}}, "has digest"},
		{"twice, different", []entry{{name: "manifest.json", data: "[]"}, {name: "./manifest.json", data: "[1]"}}, "two different"},
		{"no list", []entry{{name: "manifest.json", data: "{}"}}, "manifest.json"},
		{"an empty list", []entry{{name: "manifest.json", data: "[]"}}, "no image"},
		{"no configuration", []entry{{name: "manifest.json", data: oneImage}}, `"c.json"`},
		{"no layer", []entry{{name: "manifest.json", data: oneImage}, {name: "c.json", data: "{}"}}, `"l/layer.tar"`},
		{"a ring of links", []entry{
			{name: "manifest.json", data: oneImage},
			{name: "c.json", data: "{}"},
			{name: "l/layer.tar", link: "../m/layer.tar"},
			{name: "m/layer.tar", link: "../l/layer.tar"},
		}, "link to a link"},
		{"a layer outside", []entry{{name: "manifest.json", data: `[{"Config":"../../c.json"}]`}}, "leads out"},
		{"a great many layers", []entry{
			{name: "c", data: "{}"},
			{name: "manifest.json", data: `[{"Config":"c","Layers":["c"` + strings.Repeat(`,"c"`, maxLayers) + `]}]`},
		}, "layers"},
		{"a great many names", []entry{
			{name: "c", data: "{}"},
			{name: "manifest.json", data: `[{"Config":"c","RepoTags":["a:1"` + strings.Repeat(`,"a:1"`, maxTags) + `]}]`},
		}, "names"},
		{"a long media type", []entry{{name: "oci-layout", data: layoutFile}, {name: "index.json", data: `{"manifests":[{"digest":"` +
			string(digest.FromString("x")) + `","mediaType":"` + strings.Repeat("x", maxType+1) + `"}]}`}}, "no manifest"},
		{"a huge manifest", []entry{{name: "oci-layout", data: layoutFile}, {name: "index.json", data: `{"manifests":[{"digest":"` +
			string(digest.FromString("x")) + `","size":5000000}]}`}}, "no manifest"},
		{"no layout", []entry{{name: "index.json", data: "{}"}}, "no oci-layout"},
		{"another layout", []entry{{name: "index.json", data: "{}"}, {name: "oci-layout", data: `{"imageLayoutVersion":"2"}`}}, `version "2"`},
		{"no digest", []entry{{name: "oci-layout", data: layoutFile}, index("nonsense")}, `"nonsense"`},
		{
			"a huge index",
			[]entry{{name: "oci-layout", data: layoutFile}, {name: "index.json", data: strings.Repeat(" ", maxDocument+1)}},
			"at most",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := read(t, makeTar(tc.in...))
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
	cut := makeTar(entry{name: "manifest.json", data: strings.Repeat("x", 4096)}).Bytes()[:1024]
	if _, err := read(t, bytes.NewReader(cut)); !errors.Is(err, ErrInvalid) {
		t.Errorf("cut off: %v", err)
	}
	if err := damaged(fmt.Errorf("read: %w", tar.ErrFieldTooLong)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a header of megabytes: %v", err)
	}
	bomb := makeTar(entry{name: "a", data: strings.Repeat("x", 4096)})
	if _, err := Read(t.Context(), bomb, t.TempDir(), unpack.Limits{MaxBytes: 1000}); !errors.Is(err, ErrInvalid) {
		t.Errorf("over the limit: %v", err)
	}
}

// Blobs that are missing, or of another size, are found when they are asked for.
func TestBlobs(t *testing.T) {
	var b bytes.Buffer
	p := packed("one", "a:1")
	if err := WriteOCI(t.Context(), &b, []Packed{p}); err != nil {
		t.Fatal(err)
	}
	c, err := read(t, &b)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []ocispec.Descriptor{
		{Digest: digest.FromString("none"), Size: 4},
		{Digest: p.Config.Digest, Size: 1},
		{Digest: "sha256:../../x"},
	} {
		if _, err := c.Document(t.Context(), d); !errors.Is(err, ErrInvalid) {
			t.Errorf("document %v: %v", d, err)
		}
		if _, err := c.Open(d); !errors.Is(err, ErrInvalid) {
			t.Errorf("blob %v: %v", d, err)
		}
	}
}

// Old versions of docker save write links from one layer to another.
func TestLinkedLayers(t *testing.T) {
	c, err := read(t, makeTar(
		entry{name: "m/layer.tar", data: "the layer"}, entry{name: "l/layer.tar", link: "../m/layer.tar"},
		entry{name: "c.json", data: "{}"}, entry{name: "c.json", data: "{}"}, entry{name: "manifest.json", data: oneImage},
	))
	if err != nil {
		t.Fatal(err)
	}
	data, _ := c.Document(t.Context(), c.Images[0].Top)
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil || m.Layers[0].Digest != digest.FromString("the layer") {
		t.Errorf("manifest %s", data)
	}
}

func FuzzRead(f *testing.F) {
	for _, write := range []func(context.Context, io.Writer, []Packed) error{WriteOCI, WriteDocker} {
		var b bytes.Buffer
		if err := write(f.Context(), &b, []Packed{packed("layer", "a:1")}); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add(makeTar(entry{name: "l", link: "m"}, entry{name: "manifest.json", data: oneImage}).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		c, err := Read(t.Context(), bytes.NewReader(data), dir, unpack.Limits{MaxBytes: 1 << 20})
		if err == nil {
			for _, img := range c.Images {
				if doc, err := c.Document(t.Context(), img.Top); err == nil && digest.FromBytes(doc) != img.Top.Digest {
					t.Errorf("document %s is not what its digest says", img.Top.Digest)
				}
			}
			err = c.Close()
			if err != nil {
				t.Error(err)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left behind: %v (%v)", left, err)
		}
	})
}
