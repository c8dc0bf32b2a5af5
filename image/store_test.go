package image

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/snapshot"
)

func TestRemove(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	shared := gzipLayer(tarOf("shared", "1"))
	a := r.image("a:1", []testLayer{shared, gzipLayer(tarOf("a", "1"))}, nil)
	b := r.image("b:1", []testLayer{shared}, nil)
	r.manifests["a:2"] = r.manifests["a:1"]
	for _, ref := range []string{"a:1", "a:2", "b:1"} {
		_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
		must(t, err)
	}
	if img, _ := s.Get(r.ref("a:1")); len(img.RepoTags) != 2 || len(img.RepoDigests) != 1 {
		t.Errorf("names %q %q", img.RepoTags, img.RepoDigests)
	}
	must(t, s.Remove(t.Context(), r.ref("a:2")))
	if _, err := s.Get(r.ref("a:1")); !errors.Is(err, ErrNotFound) {
		t.Errorf("the other tag: %v, want the whole image to be gone", err)
	}
	if got := s.left(t); got != "images 1 blobs 3 layers 1 ingest 0 staging 0" {
		t.Error(got)
	}
	must(t, s.Remove(t.Context(), r.ref("a:1")))
	must(t, s.Remove(t.Context(), string(a.config)))
	must(t, s.Remove(t.Context(), "never-heard-of"))
	if err := s.Remove(t.Context(), "Not A Reference"); !errors.Is(err, ErrInvalidReference) {
		t.Errorf("bad reference: %v", err)
	}

	s.layers.use(b.diffIDs[0], true)
	must(t, s.Remove(t.Context(), b.config.Encoded()))
	if got := s.left(t); got != "images 0 blobs 0 layers 1 ingest 0 staging 0" {
		t.Errorf("layer in use: %s", got)
	}
	s.layers.use(b.diffIDs[0], false)
	must(t, s.GC(t.Context()))
	if got := s.left(t); got != nothingLeft {
		t.Error(got)
	}
	if bytes, inodes, err := s.Usage(); bytes != 0 || inodes != 0 || err != nil {
		t.Errorf("usage %d %d %v", bytes, inodes, err)
	}
}

func TestOpenCleansUp(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	keep := r.image("keep:1", threeLayers(), nil)
	hurt := r.image("hurt:1", []testLayer{gzipLayer(tarOf("h", "1"))}, nil)
	torn := r.image("torn:1", []testLayer{gzipLayer(tarOf("t", "1"))}, nil)
	for _, ref := range []string{"keep:1", "hurt:1", "torn:1"} {
		_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
		must(t, err)
	}
	must(t, os.Remove(s.blobs.Path(hurt.config)))
	must(t, os.WriteFile(s.blobs.Path(torn.config), []byte("{}"), 0o600))
	must(t, os.WriteFile(filepath.Join(s.Root(), ".atomic-1"), []byte("x"), 0o600))
	must(t, os.WriteFile(filepath.Join(s.blobs.Ingest(), "blob-1"), []byte("x"), 0o600))
	must(t, os.WriteFile(s.blobs.Path(digest.FromString("stray")), []byte("x"), 0o600))
	must(t, os.Mkdir(s.layers.path(digest.FromString("stray")), 0o700))
	s.reopen(t)
	// Layers and their blobs are kept for a day, for the damaged images will be pulled again.
	if got := s.left(t); got != "images 1 blobs 7 layers 5 ingest 0 staging 0" {
		t.Error(got)
	}
	must(t, s.Release(t.Context(), garbage.SalvageLease))
	if _, err := os.Stat(filepath.Join(s.Root(), ".atomic-1")); err == nil {
		t.Error("temporary file left")
	}
	if _, err := s.Get(string(keep.config)); err != nil {
		t.Error(err)
	}
	s.reopen(t)
	if got := s.left(t); got != "images 1 blobs 5 layers 3 ingest 0 staging 0" {
		t.Errorf("second time: %s", got)
	}
}

// Other tools read the directory as an OCI image layout.
func TestLayoutOnDisk(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("app:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	data, err := os.ReadFile(filepath.Join(s.Root(), "oci-layout"))
	if err != nil || string(data) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout is %s, %v", data, err)
	}
	data, err = os.ReadFile(filepath.Join(s.Root(), "index.json"))
	must(t, err)
	var index ocispec.Index
	must(t, json.Unmarshal(data, &index))
	if len(index.Manifests) != 1 || index.Manifests[0].Digest != p.manifest || index.Manifests[0].Size == 0 ||
		index.Manifests[0].MediaType != ocispec.MediaTypeImageManifest ||
		index.Manifests[0].Annotations[ocispec.AnnotationRefName] != r.ref("app:1") {
		t.Errorf("index.json is %s", data)
	}
	for _, d := range append(slices.Clone(p.layers), p.config, p.manifest) {
		data, err := os.ReadFile(filepath.Join(s.Root(), "blobs", "sha256", d.Encoded()))
		if err != nil || digest.FromBytes(data) != d {
			t.Errorf("blob %s: %v", d, err)
		}
	}
}

func TestUsageOfLayers(t *testing.T) {
	r := newFake(t)
	s := openStore(t, nil)
	s.layers.usage = snapshot.Usage{Bytes: 1000, Inodes: 10}
	r.image("app:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	if bytes, inodes, err := s.Usage(); bytes != s.blocks(t)+3000 || inodes != 5+30 || err != nil {
		t.Errorf("usage %d %d %v", bytes, inodes, err)
	}
}

// Pulls, removals and collections at once end with a store that is whole.
func TestPullsAndRemovalsTogether(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	shared := gzipLayer(tarOf("shared", "1"))
	for _, name := range []string{"a:1", "b:1", "c:1"} {
		r.image(name, []testLayer{shared, gzipLayer(tarOf(name, "1"))}, nil)
	}
	var wg sync.WaitGroup
	for _, name := range []string{"a:1", "b:1", "c:1"} {
		wg.Go(func() {
			for range 8 {
				if _, err := s.Pull(t.Context(), r.ref(name), PullOptions{}); err != nil {
					t.Error(err)
				}
				_ = s.List()
				if err := s.Remove(t.Context(), r.ref(name)); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.Pull(t.Context(), r.ref(name), PullOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := s.left(t); got != "images 3 blobs 10 layers 4 ingest 0 staging 0" {
		t.Error(got)
	}
	s.reopen(t)
	if got := s.left(t); got != "images 3 blobs 10 layers 4 ingest 0 staging 0" {
		t.Errorf("after reopening: %s", got)
	}
}

func TestFind(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("app:1", nil, nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	hex := p.config.Encoded()
	other := "0"
	if hex[0] == '0' {
		other = "1"
	}
	for ref, want := range map[string]error{
		hex[:reference.MinIDPrefix]:      nil,
		hex[:reference.MinIDPrefix-1]:    ErrNotFound, // could be a name
		"sha256:" + hex[:10]:             nil,
		"sha256:" + other + hex[1:]:      ErrNotFound,
		other + hex[1:12]:                ErrNotFound,
		r.ref("app"):                     ErrNotFound, // latest
		r.ref("app@" + string(p.config)): ErrNotFound, // the id is no manifest
		"A":                              ErrInvalidReference,
	} {
		if _, err := s.Get(ref); !errors.Is(err, want) {
			t.Errorf("Get(%q): %v, want %v", ref, err, want)
		}
	}
}
