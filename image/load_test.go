package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/archive"
)

// What one store saves another one loads, in both formats, with names and digests.
func TestSaveAndLoad(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	a := r.image("a:1", threeLayers(), nil)
	b := r.image("b:1", threeLayers()[:1], nil)
	for _, ref := range []string{"a:1", "b:1"} {
		_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
		must(t, err)
	}
	_, err := s.Tag(t.Context(), r.ref("a:1"), "second/name:2")
	must(t, err)
	refs := []string{r.ref("a:1"), "second/name:2", b.config.Encoded()}
	for _, format := range []ArchiveFormat{OCIArchive, DockerArchive} {
		var first, second bytes.Buffer
		began := false
		must(t, s.Save(t.Context(), &first, refs, SaveOptions{Format: format, Begin: func(n int64, notes []string) error {
			began = len(notes) == 0 && (n > 0) == (format == OCIArchive)
			return nil
		}}))
		must(t, s.Save(t.Context(), &second, refs, SaveOptions{Format: format}))
		if !began || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Errorf("format %d: the same images make other archives, or began is %v", format, began)
		}
		to := openStore(t, nil)
		loaded, err := to.Load(t.Context(), &first, "")
		must(t, err)
		images := loaded.Images
		if len(images) != 2 || images[0].ID != a.config || images[1].ID != b.config {
			t.Fatalf("format %d: loaded %+v", format, images)
		}
		if got, err := to.Get("second/name:2"); err != nil || got.ID != a.config || !slices.Contains(got.RepoTags, r.ref("a:1")) {
			t.Errorf("format %d: %q, %v", format, got.RepoTags, err)
		}
		if format == OCIArchive && images[0].Manifest != a.manifest {
			t.Errorf("manifest %s became %s", a.manifest, images[0].Manifest)
		}
		to.reopen(t)
		if left := to.left(t); !strings.HasPrefix(left, "images 2 ") || !strings.HasSuffix(left, "layers 3 ingest 0 staging 0") {
			t.Errorf("format %d: after a restart: %s", format, left)
		}
	}
	if left := s.left(t); !strings.HasSuffix(left, "ingest 0 staging 0") {
		t.Error(left)
	}
}

// entries are files of an archive, in order.
type entries []struct{ name, data string }

func (es entries) tar() io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range es {
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o644, Size: int64(len(e.data))})
		_, _ = w.Write([]byte(e.data))
	}
	_ = w.Close()
	return &b
}

// dockerArchive is what old tools write, with one layer.
func dockerArchive(names ...string) entries {
	layer := string(tarOf("f", "1"))
	config, _ := json.Marshal(ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromString(layer)}},
	})
	manifest, _ := json.Marshal([]map[string]any{{"Config": "c.json", "RepoTags": names, "Layers": []string{"abc/layer.tar"}}})
	return entries{{"abc/layer.tar", layer}, {"c.json", string(config)}, {"manifest.json", string(manifest)}}
}

func TestLoadNames(t *testing.T) {
	for _, tc := range []struct {
		name     string
		in       []string // in the archive
		fallback string
		want     []string
		err      error
	}{
		{"its own", []string{"app:1", "quay.io/x/y:2"}, "", []string{"docker.io/library/app:1", "quay.io/x/y:2"}, nil},
		{"its own come first", []string{"app:1"}, "other", []string{"docker.io/library/app:1"}, nil},
		{"none, one given", nil, "app", []string{"docker.io/library/app:latest"}, nil},
		{"a tag, a name given", []string{"1.36"}, "app", []string{"docker.io/library/app:1.36"}, nil},
		{"a tag, name and tag given", []string{"1.36"}, "app:2", []string{"docker.io/library/app:2"}, nil},
		{"none, none given", nil, "", nil, ErrInvalidReference},
		{"a tag, none given", []string{"1.36"}, "", nil, ErrInvalidReference},
		{"a wrong one given", nil, "App!", nil, ErrInvalidReference},
		{"wrong ones", []string{"App!:1"}, "", nil, ErrInvalidImage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := openStore(t, nil)
			loaded, err := s.Load(t.Context(), dockerArchive(tc.in...).tar(), tc.fallback)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			if err != nil {
				if s.left(t) != nothingLeft {
					t.Error(s.left(t))
				}
				return
			}
			if got := loaded.Images[0].RepoTags; !slices.Equal(got, tc.want) {
				t.Errorf("named %q, want %q", got, tc.want)
			}
		})
	}
}

// A name with a digest is that of what comes, whatever the archive says: it could take
// the name from the image that has it.
func TestLoadForgedDigest(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	a := r.image("a:1", threeLayers(), nil)
	real := r.ref("a@" + a.manifest.String())
	_, err := s.Pull(t.Context(), real, PullOptions{})
	must(t, err)
	loaded, err := s.Load(t.Context(), dockerArchive(real).tar(), "")
	must(t, err)
	must(t, s.GC(t.Context()))
	if got, err := s.Get(real); err != nil || got.ID != a.config {
		t.Errorf("the real one is %s, %v", got.ID, err)
	}
	if want := r.ref("a@" + loaded.Images[0].Manifest.String()); !slices.Equal(loaded.Images[0].RepoDigests, []string{want}) {
		t.Errorf("the forged one is called %q, want %s", loaded.Images[0].RepoDigests, want)
	}
	s.reopen(t)
	if len(s.List()) != 2 {
		t.Errorf("after a restart: %+v", s.List())
	}
}

// Images without a name are not called by the same, one after the other.
func TestLoadFallbackOnce(t *testing.T) {
	config, layer := dockerArchive()[1], dockerArchive()[0]
	two := entries{layer, config, {
		"manifest.json",
		`[{"Config":"c.json","RepoTags":["1"],"Layers":["abc/layer.tar"]},{"Config":"c.json","RepoTags":["2"],"Layers":["abc/layer.tar"]}]`,
	}}
	if _, err := openStore(t, nil).Load(t.Context(), two.tar(), "app:3"); !errors.Is(err, ErrInvalidReference) {
		t.Errorf("both app:3: %v", err)
	}
	loaded, err := openStore(t, nil).Load(t.Context(), two.tar(), "app")
	if err != nil || !slices.Equal(loaded.Images[1].RepoTags, []string{"docker.io/library/app:1", "docker.io/library/app:2"}) {
		t.Errorf("app: %+v, %v", loaded, err)
	}
}

// A wrong image in a whole archive leaves nothing behind.
func TestLoadRefuses(t *testing.T) {
	good := dockerArchive("app:1")
	with := func(at int, data string) entries {
		es := slices.Clone(good)
		es[at].data = data
		return es
	}
	for _, tc := range []struct {
		name string
		in   entries
		says string
	}{
		{"another layer", with(0, string(tarOf("g", "2"))), "uncompressed content has digest"},
		{"no tar", with(0, strings.Repeat("x", 2048)), "layer"},
		{"another platform", with(1, strings.Replace(good[1].data, runtime.GOARCH, "s390x", 1)), "s390x"},
		{"no configuration", with(1, "[]"), "malformed config"},
		{"a layer that leads out", with(0, string(tarOf("../f", "1"))), "layer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := openStore(t, nil)
			_, err := s.Load(t.Context(), tc.in.tar(), "")
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that says %q", err, tc.says)
			}
			if s.left(t) != nothingLeft {
				t.Error(s.left(t))
			}
		})
	}
	s := openStore(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Load(ctx, good.tar(), ""); !errors.Is(err, context.Canceled) || s.left(t) != nothingLeft {
		t.Errorf("cancelled: %v, %s", err, s.left(t))
	}
}

// Two archives with one layer come at the same time, and one of them breaks off.
func TestLoadTogether(t *testing.T) {
	s := openStore(t, nil)
	data, err := io.ReadAll(dockerArchive("app:1").tar())
	must(t, err)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in := io.Reader(bytes.NewReader(data))
			if i%2 == 1 { // its client goes away when all has come
				in = io.MultiReader(in, readerFunc(func([]byte) (int, error) { cancel(); return 0, io.EOF }))
			}
			if _, err := s.Load(ctx, in, ""); err != nil && (i%2 == 0 || !errors.Is(err, context.Canceled)) {
				t.Errorf("load %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if left := s.left(t); !strings.HasPrefix(left, "images 1 ") || !strings.HasSuffix(left, "layers 1 ingest 0 staging 0") {
		t.Error(left)
	}
}

func TestImport(t *testing.T) {
	s := openStore(t, nil)
	layer := gzipLayer(tarOf("bin/", "", "bin/app", "1"))
	img, err := s.Import(t.Context(), bytes.NewReader(layer.data), "imported",
		ocispec.Image{Config: ocispec.ImageConfig{Cmd: []string{"/bin/app"}}})
	must(t, err)
	if !slices.Equal(img.RepoTags, []string{"docker.io/library/imported:latest"}) || !slices.Equal(img.Config.Cmd, []string{"/bin/app"}) ||
		!slices.Equal(img.Layers, []digest.Digest{digest.FromBytes(layer.tar)}) {
		t.Errorf("imported %+v", img)
	}
	if data, err := os.ReadFile(filepath.Join(s.layers.path(img.Layers[0]), "bin/app")); err != nil || string(data) != "1" {
		t.Errorf("bin/app is %q, %v", data, err)
	}
	s.reopen(t)
	if _, err := s.Get("imported"); err != nil {
		t.Error(err)
	}
	must(t, s.Remove(t.Context(), "imported"))
	for _, data := range []string{"", "no archive at all, but more than a block of zeros" + strings.Repeat("x", 1024)} {
		if _, err := s.Import(t.Context(), strings.NewReader(data), "bad", ocispec.Image{}); data != "" && !errors.Is(err, ErrInvalidImage) {
			t.Errorf("import of %.10q: %v", data, err)
		}
		must(t, s.Remove(t.Context(), "bad"))
	}
	if _, err := s.Import(t.Context(), strings.NewReader(""), "Not A Name", ocispec.Image{}); !errors.Is(err, ErrInvalidReference) {
		t.Error(err)
	}
	if s.left(t) != nothingLeft {
		t.Error(s.left(t))
	}
}

// A store that keeps no blobs saves what it can make again.
func TestSaveWithoutBlobs(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	a := r.image("a:1", []testLayer{gzipLayer(tarOf("f", "1"))}, nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	must(t, os.Remove(s.blobs.Path(a.layers[0])))
	recipe := s.layers.recipe(s.layers.path(a.diffIDs[0]))
	must(t, os.Rename(recipe, recipe+".gone"))
	for _, format := range []ArchiveFormat{OCIArchive, DockerArchive} {
		if err := s.Save(t.Context(), io.Discard, []string{r.ref("a:1")}, SaveOptions{Format: format}); err == nil {
			t.Error("saved what is not there")
		}
	}
	must(t, os.Rename(recipe+".gone", recipe))
	for _, format := range []ArchiveFormat{OCIArchive, DockerArchive} {
		var b bytes.Buffer
		var notes []string
		must(t, s.Save(t.Context(), &b, []string{r.ref("a:1")}, SaveOptions{Format: format, Begin: func(_ int64, n []string) error {
			notes = n
			return nil
		}}))
		to := openStore(t, nil)
		loaded, err := to.Load(t.Context(), &b, "")
		must(t, err)
		if loaded.Images[0].ID != a.config || len(notes) != 0 != (format == OCIArchive) {
			t.Errorf("format %d: %s, notes %q", format, loaded.Images[0].ID, notes)
		}
	}
	if left := s.left(t); !strings.HasSuffix(left, "ingest 0 staging 0") {
		t.Error(left)
	}
}

var _ offer = (*archive.Contents)(nil)

// A blob that is damaged is replaced by what an archive brings, as by a pull.
func TestLoadMendsBlob(t *testing.T) {
	s := openStore(t, nil)
	in := dockerArchive("app:1")
	blob := digest.FromString(in[0].data)
	must(t, os.WriteFile(s.blobs.Path(blob), []byte("cut"), 0o644))
	_, err := s.Load(t.Context(), in.tar(), "")
	must(t, err)
	if data, err := os.ReadFile(s.blobs.Path(blob)); err != nil || string(data) != in[0].data {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// A layer that has to be packed again is packed once for an archive, however many images have it.
func TestSavePacksOnce(t *testing.T) {
	r, s := newFake(t), openStore(t, func(c *Config) { c.KeepBlobs = false })
	shared := gzipLayer(tarOf("shared", "1"))
	r.image("a:1", []testLayer{shared, shared, gzipLayer(tarOf("a", "1"))}, nil)
	r.image("b:1", []testLayer{shared}, nil)
	refs := []string{r.ref("a:1"), r.ref("b:1")}
	for _, ref := range refs {
		_, err := s.Pull(t.Context(), ref, PullOptions{})
		must(t, err)
	}
	var b bytes.Buffer
	must(t, s.Save(t.Context(), &b, refs, SaveOptions{}))
	if s.layers.archived != 2 {
		t.Errorf("%d layers packed, want 2", s.layers.archived)
	}
	loaded, err := openStore(t, nil).Load(t.Context(), &b, "")
	must(t, err)
	if len(loaded.Images) != 2 || len(loaded.Images[0].Layers) != 3 {
		t.Errorf("loaded %+v", loaded.Images)
	}
	if left := s.left(t); !strings.HasSuffix(left, "ingest 0 staging 0") {
		t.Error(left)
	}
}

// Regression: a store without descriptors could not delete the staged files of an import. They
// stayed until the next Open.
func TestImportWithoutDescriptors(t *testing.T) {
	s := openStore(t, nil)
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	broken := errors.New("broken")
	var scratch []string
	_, err := s.Import(t.Context(), readerFunc(func([]byte) (int, error) {
		scratch, _ = filepath.Glob(filepath.Join(s.blobs.Ingest(), "scratch-*"))
		return 0, errors.Join(broken, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	}), "imported", ocispec.Image{})
	there := len(scratch) == 1 && exists(scratch[0])
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if !errors.Is(err, broken) || !there {
		t.Fatalf("%v; of %q is left: %v", err, scratch, there)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for s.left(t) != nothingLeft {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(s.left(t))
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// What is loaded from an archive for machines without a registry stays while the archive is as it
// was.
func TestPreloadedImagesArePinned(t *testing.T) {
	r := newFake(t)
	r.image("a:1", []testLayer{gzipLayer(tarOf("a", "1"))}, nil)
	s := openStore(t, nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	var saved bytes.Buffer
	must(t, s.Save(t.Context(), &saved, []string{r.ref("a:1")}, SaveOptions{}))
	file := filepath.Join(t.TempDir(), "a.tar")
	must(t, os.WriteFile(file, saved.Bytes(), 0o644))

	full := 99
	to := openStore(t, func(c *Config) {
		c.HighWater, c.LowWater = 85, 80
		c.used = func() int { return full }
		c.now = func() time.Time { return time.Now().Add(justPulled) }
	})
	preload := func() {
		t.Helper()
		_, err := to.Preload(t.Context(), bytes.NewReader(saved.Bytes()), file)
		must(t, err)
	}
	pinned := func(when string, want bool) {
		t.Helper()
		img, err := to.Get(r.ref("a:1"))
		if err != nil || img.Pinned != want {
			t.Errorf("%s: pinned %v, %v", when, img.Pinned, err)
		}
	}
	preload()
	pinned("preloaded", true)
	to.reopen(t)
	pinned("after a restart", true)
	_, err = to.Load(t.Context(), bytes.NewReader(saved.Bytes()), "")
	must(t, err)
	pinned("loaded once more by hand", true)
	to.makeRoom(t)
	pinned("after a collection", true)
	must(t, os.Chtimes(file, time.Time{}, time.Unix(1, 0)))
	pinned("with another archive", false)
	preload()
	pinned("preloaded from that", true)
	must(t, os.Remove(file))
	pinned("without the archive", false)
	to.makeRoom(t)
	if _, err := to.Get(r.ref("a:1")); !errors.Is(err, ErrNotFound) {
		t.Errorf("after a collection without the archive: %v", err)
	}
	for _, wrong := range []string{"a.tar", file} {
		if _, err := to.Preload(t.Context(), bytes.NewReader(saved.Bytes()), wrong); err == nil {
			t.Errorf("archive %s, which is relative or does not exist, was taken", wrong)
		}
	}
}

// readerFunc is a reader that is a function.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
