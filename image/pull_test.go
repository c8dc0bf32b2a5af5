package image

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/manifest"
)

func threeLayers() []testLayer {
	return []testLayer{
		gzipLayer(tarOf("a/", "", "a/f", "gzip")),
		zstdLayer(tarOf("b", "zstd")),
		plainLayer(tarOf(".wh.c", "", "d", "plain")),
	}
}

func TestPullByTag(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	want := r.image("app:1", threeLayers(), nil)
	var last, total int64
	layers := map[int]LayerProgress{}
	img, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{
		Progress: func(d, n int64) { last, total = d, n },
		Layer:    func(l LayerProgress) { layers[l.Place] = l },
	})
	must(t, err)
	for i, blob := range want.layers {
		if l := layers[i]; l.Digest != blob || !l.Complete || l.Done != l.Total || l.Total == 0 {
			t.Errorf("layer %d: %+v", i, l)
		}
	}
	if img.ID != want.config || img.Manifest != want.manifest || !slices.Equal(img.Layers, want.diffIDs) {
		t.Errorf("image %+v, want %+v", img, want)
	}
	if !slices.Equal(img.RepoTags, []string{r.ref("app:1")}) ||
		!slices.Equal(img.RepoDigests, []string{r.ref("app@" + want.manifest.String())}) {
		t.Errorf("names %q %q", img.RepoTags, img.RepoDigests)
	}
	if img.Config.User != "1000" || img.Size != total || last != total || total == 0 {
		t.Errorf("user %q, size %d, progress %d of %d", img.Config.User, img.Size, last, total)
	}
	for i, file := range []string{"a/f", "b", "d"} {
		if got, want := s.content(t, img.Layers[i], file), []string{"gzip", "zstd", "plain"}[i]; got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	if got := s.left(t); got != "images 1 blobs 5 layers 3 ingest 0 staging 0" {
		t.Error(got)
	}
	for _, ref := range []string{
		r.ref("app:1"), r.ref("app@" + want.manifest.String()), string(img.ID), img.ID.Encoded(),
		img.ID.Encoded()[:8], string(img.ID)[:16],
	} {
		if got, err := s.Get(ref); err != nil || got.ID != img.ID {
			t.Errorf("Get(%q) = %v, %v", ref, got.ID, err)
		}
	}
	s.reopen(t)
	if again, err := s.Get(r.ref("app:1")); err != nil || again.ID != img.ID || !again.Pulled.Equal(img.Pulled.Round(0)) ||
		again.Size != img.Size {
		t.Errorf("after reopening: %+v, %v; was %+v", again, err, img)
	}
	bytes, inodes, err := s.Usage()
	if err != nil || bytes != s.blocks(t) || inodes != 5 {
		t.Errorf("usage %d %d %v", bytes, inodes, err)
	}
}

func TestPullByDigestAndIndexes(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	ours := r.image("multi:ours", threeLayers(), nil)
	other := r.image("multi:other", nil, func(_ *ocispec.Manifest, c *ocispec.Image) { c.Architecture = "s390x" })
	arch := runtime.GOARCH
	_, err := s.Pull(t.Context(), r.ref("multi:ours"), PullOptions{})
	must(t, err)
	inner := r.index("multi:inner", ocispec.MediaTypeImageIndex, r.of("multi", ours.manifest, "linux", arch, ""))
	outer := r.index("multi:outer", manifest.DockerIndex,
		r.of("multi", other.manifest, "linux", "s390x", ""),
		r.of("multi", other.manifest, "windows", arch, ""),
		r.of("multi", other.manifest, "unknown", "unknown", ""),
		r.of("multi", inner, "linux", arch, ""))
	for _, ref := range []string{"multi:inner", "multi:outer", "multi@" + outer.String(), "multi:any@" + outer.String()} {
		img, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
		must(t, err)
		if img.ID != ours.config || img.Manifest != ours.manifest {
			t.Errorf("%s: image %s, want %s", ref, img.ID, ours.config)
		}
	}
	img, err := s.Get(string(ours.config))
	must(t, err)
	if len(img.RepoTags) != 3 || len(img.RepoDigests) != 3 {
		t.Errorf("names %q %q", img.RepoTags, img.RepoDigests)
	}
	s.reopen(t)
	if _, err := s.Get(r.ref("multi@" + outer.String())); err != nil {
		t.Error(err)
	}
	if r.asked("/blobs/"+string(ours.layers[0])) != 1 {
		t.Error("a layer was fetched more than once")
	}
}

func TestDockerSchema2(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("docker:1", threeLayers(), func(m *ocispec.Manifest, _ *ocispec.Image) {
		m.MediaType, m.Config.MediaType = manifest.DockerManifest, manifest.DockerConfig
		m.Layers[0].MediaType, m.Layers[1].MediaType = manifest.DockerLayerGzip, manifest.DockerLayerZstd
		m.Layers[2].MediaType = manifest.DockerLayer
	})
	if _, err := s.Pull(t.Context(), r.ref("docker:1"), PullOptions{}); err != nil {
		t.Error(err)
	}
}

func TestImageWithoutLayersAndWithRepeatedOnes(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("none:1", nil, nil)
	l := gzipLayer(tarOf("a", "1"))
	r.image("same:1", []testLayer{l, l, l}, nil)
	for _, ref := range []string{"none:1", "same:1"} {
		if _, err := s.Pull(t.Context(), r.ref(ref), PullOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func TestTagMoves(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	old := r.image("app:1", []testLayer{gzipLayer(tarOf("v", "old"))}, nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	now := r.image("app:1", []testLayer{gzipLayer(tarOf("v", "new"))}, nil)
	_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	s.reopen(t)
	if img, err := s.Get(r.ref("app:1")); err != nil || img.ID != now.config {
		t.Errorf("tag is %v, %v", img.ID, err)
	}
	img, err := s.Get(string(old.config))
	if err != nil || len(img.RepoTags) != 0 || len(img.RepoDigests) != 1 {
		t.Errorf("old image %+v, %v; want it by digest only", img, err)
	}
}

func TestConcurrentPullsShare(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	shared := gzipLayer(tarOf("big", strings.Repeat("shared", 10000)))
	a := r.image("a:1", []testLayer{shared, gzipLayer(tarOf("a", "1"))}, nil)
	r.image("b:1", []testLayer{shared, gzipLayer(tarOf("b", "1"))}, nil)
	hold := make(chan struct{})
	var once sync.Once
	r.intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, string(a.layers[0])) {
			once.Do(func() { <-hold })
		}
		return false
	}
	var wg sync.WaitGroup
	for _, ref := range []string{"a:1", "a:1", "a:1", "b:1", "b:1"} {
		wg.Go(func() {
			if _, err := s.Pull(t.Context(), r.ref(ref), PullOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	close(hold)
	wg.Wait()
	if n := r.asked(string(a.layers[0])); n != 1 {
		t.Errorf("shared layer fetched %d times", n)
	}
	if got := s.left(t); got != "images 2 blobs 7 layers 3 ingest 0 staging 0" {
		t.Error(got)
	}
}

// A pull that waits for another's layer must not fail with it.
func TestSharedLayerOutlivesTheFirstPull(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	shared := gzipLayer(tarOf("big", "shared"))
	a := r.image("a:1", []testLayer{shared}, nil)
	r.image("b:1", []testLayer{shared}, nil)
	arrived, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, string(a.layers[0])) {
			once.Do(func() { close(arrived); <-hold })
		}
		return false
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := s.Pull(ctx, r.ref("a:1"), PullOptions{}); first <- err }()
	<-arrived
	second := make(chan error, 1)
	go func() { _, err := s.Pull(t.Context(), r.ref("b:1"), PullOptions{}); second <- err }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first pull: %v", err)
	}
	close(hold)
	must(t, <-second)
	if got := s.left(t); got != "images 1 blobs 3 layers 1 ingest 0 staging 0" {
		t.Error(got)
	}
}

func TestCancelledPullLeavesNothing(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	img := r.image("a:1", threeLayers(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, string(img.layers[2])) {
			w.Header().Set("Content-Length", "10240")
			_, _ = w.Write(make([]byte, 100))
			w.(http.Flusher).Flush()
			cancel()
			<-release
			return true
		}
		return false
	}
	_, err := s.Pull(ctx, r.ref("a:1"), PullOptions{})
	close(release)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if got := s.left(t); got != nothingLeft {
		t.Error(got)
	}
}

func TestCloseEndsPulls(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("a:1", threeLayers(), nil)
	arrived := make(chan struct{})
	var once sync.Once
	r.intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, "/blobs/") {
			once.Do(func() { close(arrived) })
			<-req.Context().Done()
		}
		return false
	}
	done := make(chan error, 1)
	go func() { _, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{}); done <- err }()
	<-arrived
	must(t, s.Close())
	if err := <-done; !errors.Is(err, errClosed) {
		t.Errorf("error %v, want %v", err, errClosed)
	}
	if _, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{}); !errors.Is(err, errClosed) {
		t.Errorf("pull after Close: %v", err)
	}
}

func TestLayerMissingIsUnpackedFromItsBlob(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("a:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	must(t, s.layers.RemoveLayer(t.Context(), p.diffIDs[0]))
	_, err = s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	if got := s.content(t, p.diffIDs[0], "a/f"); got != "gzip" || r.asked(string(p.layers[0])) != 1 {
		t.Errorf("content %q, fetched %d times", got, r.asked(string(p.layers[0])))
	}
}

// A blob that is in the store already is no proof of the layer that an image claims it is:
// such an image would get a layer that is not its own.
func TestStoredBlobClaimedToBeAnotherLayer(t *testing.T) {
	for _, keep := range []bool{true, false} {
		r, s := newFake(t), openStore(t, func(c *Config) { c.KeepBlobs = keep })
		private, own := gzipLayer(tarOf("private", "key")), gzipLayer(tarOf("own", "1"))
		r.image("private:1", []testLayer{private}, nil)
		r.image("own:1", []testLayer{own}, nil)
		for _, ref := range []string{"private:1", "own:1"} {
			_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
			must(t, err)
		}
		lie := own
		lie.tar = private.tar
		r.image("lie:1", []testLayer{lie}, nil)
		if _, err := s.Pull(t.Context(), r.ref("lie:1"), PullOptions{}); !errors.Is(err, ErrInvalidImage) {
			t.Errorf("blobs kept: %t: %v", keep, err)
		}
	}
}

// The same layer in another compression is fetched, verified, and not unpacked again.
func TestSameLayerOtherBlob(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	tar := tarOf("f", "x")
	a := r.image("a:1", []testLayer{gzipLayer(tar)}, nil)
	r.image("b:1", []testLayer{zstdLayer(tar)}, nil)
	for _, ref := range []string{"a:1", "b:1"} {
		_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
		must(t, err)
	}
	if n := s.layers.commits[a.diffIDs[0]]; n != 1 {
		t.Errorf("layer unpacked %d times", n)
	}
	lie := gzipLayer(tarOf("f", "something else"))
	lie.tar = tar
	r.image("c:1", []testLayer{lie}, nil)
	if _, err := s.Pull(t.Context(), r.ref("c:1"), PullOptions{}); !errors.Is(err, ErrInvalidImage) {
		t.Errorf("blob that is not the layer it claims: %v", err)
	}
	if got := s.left(t); got != "images 2 blobs 6 layers 1 ingest 0 staging 0" {
		t.Error(got)
	}
}
