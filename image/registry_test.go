package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/snapshot"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests unpack layers with owners and whiteouts: run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeRegistry speaks enough of the distribution API to be pulled from, and misbehaves
// where a test says so: intercept, if not nil, may answer a request itself.
type fakeRegistry struct {
	*httptest.Server
	intercept func(w http.ResponseWriter, r *http.Request) (done bool)

	mu        sync.Mutex
	blobs     map[digest.Digest][]byte
	manifests map[string]manifestBlob // by repo:tag and repo@digest
	requests  map[string]int          // by path
}

type manifestBlob struct {
	mediaType string
	data      []byte
}

func newFake(t testing.TB) *fakeRegistry {
	r := unstartedFake()
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func unstartedFake() *fakeRegistry {
	return &fakeRegistry{
		blobs:     map[digest.Digest][]byte{},
		manifests: map[string]manifestBlob{},
		requests:  map[string]int{},
	}
}

// host is the registry as a reference names it.
func (r *fakeRegistry) host() string { return r.Listener.Addr().String() }

func (r *fakeRegistry) ref(rest string) string { return r.host() + "/" + rest }

func (r *fakeRegistry) serve(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests[req.URL.Path]++
	r.mu.Unlock()
	if r.intercept != nil && r.intercept(w, req) {
		return
	}
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	if repo, ref, ok := strings.Cut(path, "/manifests/"); ok {
		sep := ":"
		if strings.Contains(ref, ":") {
			sep = "@"
		}
		r.mu.Lock()
		m, ok := r.manifests[repo+sep+ref]
		r.mu.Unlock()
		if !ok {
			refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN")
			return
		}
		w.Header().Set("Content-Type", m.mediaType)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(m.data).String())
		_, _ = w.Write(m.data)
		return
	}
	if _, d, ok := strings.Cut(path, "/blobs/"); ok {
		r.mu.Lock()
		data, ok := r.blobs[digest.Digest(d)]
		r.mu.Unlock()
		if !ok {
			refuse(w, http.StatusNotFound, "BLOB_UNKNOWN")
			return
		}
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(data))
		return
	}
	refuse(w, http.StatusNotFound, "UNSUPPORTED")
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"errors":[{"code":%q,"message":"says the registry"}]}`, code)
}

// asked counts the requests whose path contains part.
func (r *fakeRegistry) asked(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for path, count := range r.requests {
		if strings.Contains(path, part) {
			n += count
		}
	}
	return n
}

func (r *fakeRegistry) blob(data []byte) digest.Digest {
	d := digest.FromBytes(data)
	r.mu.Lock()
	r.blobs[d] = data
	r.mu.Unlock()
	return d
}

// push stores a manifest or index under repo:tag and by digest.
func (r *fakeRegistry) push(name, mediaType string, data []byte) digest.Digest {
	d := digest.FromBytes(data)
	repo, _, _ := strings.Cut(name, ":")
	r.mu.Lock()
	r.manifests[name] = manifestBlob{mediaType, data}
	r.manifests[repo+"@"+d.String()] = manifestBlob{mediaType, data}
	r.mu.Unlock()
	return d
}

// testLayer is a tar and how it is served.
type testLayer struct {
	tar       []byte
	data      []byte // compressed
	mediaType string
}

func gzipLayer(tar []byte) testLayer {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(tar)
	_ = w.Close()
	return testLayer{tar, b.Bytes(), ocispec.MediaTypeImageLayerGzip}
}

func zstdLayer(tar []byte) testLayer {
	w, _ := zstd.NewWriter(nil)
	return testLayer{tar, w.EncodeAll(tar, nil), ocispec.MediaTypeImageLayerZstd}
}

func plainLayer(tar []byte) testLayer { return testLayer{tar, tar, ocispec.MediaTypeImageLayer} }

// tarOf makes a tar of name/content pairs; a name that ends in / is a directory.
func tarOf(files ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i+1 < len(files); i += 2 {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}
		if strings.HasSuffix(h.Name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		_ = w.WriteHeader(h)
		_, _ = w.Write([]byte(files[i+1]))
	}
	_ = w.Close()
	return b.Bytes()
}

// pushed is an image in the fake registry.
type pushed struct {
	manifest, config digest.Digest
	layers           []digest.Digest // blobs
	diffIDs          []digest.Digest
}

// image pushes an OCI image; change, if not nil, spoils manifest and config before
// they are.
func (r *fakeRegistry) image(name string, layers []testLayer, change func(*ocispec.Manifest, *ocispec.Image)) pushed {
	var p pushed
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config:   ocispec.ImageConfig{User: "1000", Env: []string{"A=" + name}, Cmd: []string{"/run"}},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Layers: []ocispec.Descriptor{},
	}
	for _, l := range layers {
		d := r.blob(l.data)
		p.layers = append(p.layers, d)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(l.tar))
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: l.mediaType, Digest: d, Size: int64(len(l.data))})
	}
	if change != nil {
		change(&m, &config)
	}
	p.diffIDs = config.RootFS.DiffIDs
	data, _ := json.Marshal(config)
	p.config = r.blob(data)
	if m.Config.MediaType == "" {
		m.Config.MediaType = ocispec.MediaTypeImageConfig
	}
	m.Config.Digest, m.Config.Size = p.config, int64(len(data))
	data, _ = json.Marshal(m)
	p.manifest = r.push(name, m.MediaType, data)
	return p
}

// index pushes an index of manifests.
func (r *fakeRegistry) index(name, mediaType string, manifests ...ocispec.Descriptor) digest.Digest {
	data, _ := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediaType, Manifests: manifests})
	return r.push(name, mediaType, data)
}

// of describes a pushed document for an index.
func (r *fakeRegistry) of(repo string, d digest.Digest, os, arch, variant string) ocispec.Descriptor {
	m := r.manifests[repo+"@"+d.String()]
	return ocispec.Descriptor{
		MediaType: m.mediaType, Digest: d, Size: int64(len(m.data)),
		Platform: &ocispec.Platform{OS: os, Architecture: arch, Variant: variant},
	}
}

// dirLayers is a LayerStore in a plain directory.
type dirLayers struct {
	dir string

	mu       sync.Mutex
	inUse    map[digest.Digest]bool
	commits  map[digest.Digest]int
	n        int
	archived int            // how often an archive was made again
	through  io.Writer      // not nil: asked before each write of an archive
	usage    snapshot.Usage // of each
}

func newDirLayers(t testing.TB, dir string) *dirLayers {
	must(t, os.MkdirAll(filepath.Join(dir, "staging"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "done"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "recipes"), 0o755))
	return &dirLayers{dir: dir, inUse: map[digest.Digest]bool{}, commits: map[digest.Digest]int{}}
}

func (l *dirLayers) path(d digest.Digest) string { return filepath.Join(l.dir, "done", d.Encoded()) }

// recipe is where the recipe of a directory of layers is.
func (l *dirLayers) recipe(dir string) string {
	return filepath.Join(l.dir, "recipes", filepath.Base(dir))
}

func (l *dirLayers) Markers() unpack.Markers { return unpack.OverlayMarkers }

func (l *dirLayers) HasLayer(d digest.Digest) bool {
	_, err := os.Stat(l.path(d))
	return err == nil
}

func (l *dirLayers) NewLayer(context.Context) (LayerWriter, error) {
	l.mu.Lock()
	l.n++
	n := l.n
	l.mu.Unlock()
	dir := filepath.Join(l.dir, "staging", fmt.Sprint(n))
	return &dirWriter{l, dir}, os.Mkdir(dir, 0o755)
}

func (l *dirLayers) Layers() ([]digest.Digest, error) {
	entries, err := os.ReadDir(filepath.Join(l.dir, "done"))
	var all []digest.Digest
	for _, e := range entries {
		all = append(all, digest.NewDigestFromEncoded(digest.SHA256, e.Name()))
	}
	return all, err
}

func (l *dirLayers) RemoveLayer(_ context.Context, d digest.Digest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inUse[d] {
		return ErrLayerInUse
	}
	return os.RemoveAll(l.path(d))
}

func (l *dirLayers) LayerUsage(digest.Digest) (snapshot.Usage, error) { return l.usage, nil }

func (l *dirLayers) Flush(context.Context) error { return nil }

func (l *dirLayers) Quarantine(d digest.Digest) error { return l.RemoveLayer(context.Background(), d) }

func (l *dirLayers) HasCopy(digest.Digest) bool { return false }

func (l *dirLayers) CheckCopies(context.Context, digest.Digest) error { return nil }

func (l *dirLayers) DropCopies(digest.Digest) error { return nil }

func (l *dirLayers) use(d digest.Digest, used bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse[d] = used
}

type dirWriter struct {
	l   *dirLayers
	dir string
}

func (w *dirWriter) Dir() string { return w.dir }

// Recipe is kept next to the layer's files' directory, which is all that there is here.
func (w *dirWriter) Recipe() (io.WriteCloser, error) { return os.Create(w.l.recipe(w.dir)) }

func (w *dirWriter) Abort() error { return os.RemoveAll(w.dir) }

func (w *dirWriter) Commit(_ context.Context, d digest.Digest) error {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.commits[d]++
	err := unix.Renameat2(unix.AT_FDCWD, w.dir, unix.AT_FDCWD, w.l.path(d), unix.RENAME_NOREPLACE)
	if err == unix.EEXIST {
		return nil
	}
	return errors.Join(err, os.Rename(w.l.recipe(w.dir), w.l.recipe(w.l.path(d))))
}

// testStore is a store with its layer store, on a directory that outlives reopen.
type testStore struct {
	*Store
	layers *dirLayers
	cfg    Config
}

func openStore(t testing.TB, change func(*Config)) *testStore {
	t.Helper()
	dir := t.TempDir()
	layers := newDirLayers(t, filepath.Join(dir, "layers"))
	cfg := Config{
		Root: filepath.Join(dir, "images"), Layers: layers, Registries: registry.Config{StallTimeout: 10 * time.Second},
		KeepBlobs: true,
	}
	cfg.Layer.MinFree = 1
	if change != nil {
		change(&cfg)
	}
	s := &testStore{layers: layers, cfg: cfg}
	s.reopen(t)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// reopen closes the store, if open, and opens it again as a restart would.
func (s *testStore) reopen(t testing.TB) {
	t.Helper()
	if s.Store != nil {
		must(t, s.Close())
	}
	var err error
	s.Store, err = Open(s.cfg)
	must(t, err)
}

// left lists what is in the store: images, blobs, layers, staged files and layers.
func (s *testStore) left(t testing.TB) string {
	t.Helper()
	count := func(dir string) int {
		entries, err := os.ReadDir(dir)
		must(t, err)
		return len(entries)
	}
	return fmt.Sprintf("images %d blobs %d layers %d ingest %d staging %d", len(s.List()), count(s.blobs.Dir()),
		count(filepath.Join(s.layers.dir, "done")), count(s.blobs.Ingest()), count(filepath.Join(s.layers.dir, "staging")))
}

const nothingLeft = "images 0 blobs 0 layers 0 ingest 0 staging 0"

func (s *testStore) content(t testing.TB, diffID digest.Digest, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.layers.path(diffID), name))
	must(t, err)
	return string(data)
}
