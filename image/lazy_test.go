package image

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/registry"
)

// fakeLazy is a layer store that shows lazy layers, which are names here and nothing else.
type fakeLazy struct {
	*dirLayers
	r      *fakeRegistry
	dir    string
	refuse error // of ShowLazy
	full   bool  // NewLayer fails

	mu       sync.Mutex
	shown    map[digest.Digest]LazyLayer
	unpacked []digest.Digest
	arrive   chan error // what becomes of the next that is awaited
	gone     chan struct{}
}

func newLazyStore(t *testing.T, r *fakeRegistry) (*testStore, *fakeLazy) {
	t.Helper()
	f := &fakeLazy{r: r, dir: t.TempDir(), shown: map[digest.Digest]LazyLayer{}, arrive: make(chan error), gone: make(chan struct{})}
	s := openStore(t, func(c *Config) {
		f.dirLayers = c.Layers.(*dirLayers)
		c.Layers, c.Lazy, c.KeepBlobs = f, f, false
		c.Registries.Settings = map[string]registry.Settings{r.host(): {PlainHTTP: true, Lazy: true}}
	})
	return s, f
}

func (f *fakeLazy) ShowLazy(_ context.Context, l LazyLayer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return f.refuse
	}
	f.shown[l.DiffID] = l
	return nil
}

func (f *fakeLazy) NewLayer(ctx context.Context) (LayerWriter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return nil, unix.ENOSPC
	}
	return f.dirLayers.NewLayer(ctx)
}

func (f *fakeLazy) LazySource(d digest.Digest) (blob, toc digest.Digest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l, ok := f.shown[d]; ok && !f.HasLayer(d) {
		return l.Blob.Digest, l.TOC
	}
	return "", ""
}

func (f *fakeLazy) AwaitLazy(ctx context.Context, d digest.Digest) (*os.File, error) {
	select {
	case err := <-f.arrive:
		if err != nil {
			return nil, err
		}
	case <-f.gone:
		return nil, lazy.ErrNotShown
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	blob := f.shown[d].Blob.Digest
	f.mu.Unlock()
	f.r.mu.Lock()
	data := f.r.blobs[blob]
	f.r.mu.Unlock()
	path := filepath.Join(f.dir, blob.Encoded())
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, err
	}
	return os.Open(path)
}

func (f *fakeLazy) LazyUnpacked(_ context.Context, d digest.Digest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unpacked = append(f.unpacked, d)
	delete(f.shown, d)
	return nil
}

func (f *fakeLazy) Layers() ([]digest.Digest, error) {
	all, err := f.dirLayers.Layers()
	f.mu.Lock()
	defer f.mu.Unlock()
	for d := range f.shown {
		all = append(all, d)
	}
	return all, err
}

func (f *fakeLazy) RemoveLayer(ctx context.Context, d digest.Digest) error {
	f.mu.Lock()
	if _, ok := f.shown[d]; ok && !f.HasLayer(d) {
		delete(f.shown, d)
		close(f.gone)
	}
	f.mu.Unlock()
	return f.dirLayers.RemoveLayer(ctx, d)
}

// lazyLayer is one large enough, saying so much of itself.
func lazyLayer(says string) testLayer {
	noise := make([]byte, minLazy+1000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	return gzipLayer(tarOf("file", says, "noise", string(noise)))
}

func withTable(m *ocispec.Manifest, _ *ocispec.Image) {
	m.Layers[0].Annotations = map[string]string{lazy.TOCAnnotation: digest.FromString("table").String()}
}

// landedNow waits for the landing of a layer that is under way.
func landedNow(t *testing.T, s *testStore, d digest.Digest) {
	t.Helper()
	must(t, s.lazies.awaitWhole(t.Context(), d))
}

func TestPullLazily(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("hello")}, withTable)
	img, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{Auth: Auth{Username: "user", Password: "secret"}})
	must(t, err)
	if n := r.asked(p.layers[0].String()); n != 0 || f.HasLayer(p.diffIDs[0]) {
		t.Errorf("the blob was asked for %d times", n)
	}
	f.mu.Lock()
	l := f.shown[p.diffIDs[0]]
	f.mu.Unlock()
	if l.Image != r.ref("app:1") || l.Domain != r.host() || l.Path != "app" || l.Auth.Password != "secret" ||
		l.TOC != digest.FromString("table") ||
		l.Blob.Digest != p.layers[0] || !l.Hosts.Settings[r.host()].PlainHTTP {
		t.Errorf("shown is %+v", l)
	}
	v, err := s.Verify(t.Context(), VerifyOptions{})
	if must(t, err); len(v.Damaged) != 0 || len(v.Unverifiable) != 1 {
		t.Errorf("verified: %+v", v)
	}
	// Pulled again it is here, as far as it is to be.
	_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	f.arrive <- nil
	landedNow(t, s, p.diffIDs[0])
	if s.content(t, p.diffIDs[0], "file") != "hello" || len(f.unpacked) != 1 {
		t.Errorf("unpacked: %v", f.unpacked)
	}
	s.reopen(t)
	if got, err := s.Get(img.ID.String()); err != nil || got.Layers[0] != p.diffIDs[0] {
		t.Errorf("after a restart: %v", err)
	}
	_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	if n := r.asked(p.layers[0].String()); n != 0 {
		t.Errorf("the blob was asked for %d times", n)
	}
}

func TestLazyLayerThatLies(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("liar:1", []testLayer{lazyLayer("evil")}, func(m *ocispec.Manifest, c *ocispec.Image) {
		withTable(m, c)
		c.RootFS.DiffIDs[0] = digest.FromString("other")
	})
	_, err := s.Pull(t.Context(), r.ref("liar:1"), PullOptions{})
	must(t, err)
	f.arrive <- nil
	s.landsNot(t, p.diffIDs[0])
}

// landsNot waits until a layer cannot be landed, and its image has gone.
func (s *testStore) landsNot(t *testing.T, d digest.Digest) {
	t.Helper()
	_ = s.lazies.awaitWhole(t.Context(), d) // nil if it was over before
	if got := s.left(t); !strings.HasPrefix(got, "images 0 ") || s.layers.HasLayer(d) {
		t.Error(got)
	}
}

func TestLazyBlobThatNeverComes(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("x")}, withTable)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	f.arrive <- ErrInvalidImage
	s.landsNot(t, p.diffIDs[0])
}

// A pull that names a layer while its landing gives it up has it landed again.
func TestLazyLayerPulledWhileItIsGivenUp(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("hello")}, withTable)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	diffID := p.diffIDs[0]
	s.lazies.mu.Lock()
	l := s.lazies.landings[diffID]
	s.lazies.mu.Unlock()
	pins := []digest.Digest{diffID} // as the pull has
	must(t, s.garbage.Pin(t.Context(), pins))
	_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	f.arrive <- ErrInvalidImage
	select {
	case f.arrive <- nil:
	case <-l.done:
		t.Fatal("it is shown, and no caller waits for it")
	}
	<-l.done
	if s.content(t, diffID, "file") != "hello" {
		t.Error("it is not what was pulled")
	}
	must(t, s.garbage.Settle(t.Context(), pins, true))
}

// A layer that went with its images and is shown again, because it was pulled again at once, is not
// pulled whole.
func TestLazyLayerShownAgain(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("hello")}, withTable)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	diffID := p.diffIDs[0]
	s.lazies.mu.Lock()
	l := s.lazies.landings[diffID]
	s.lazies.mu.Unlock()
	f.arrive <- lazy.ErrNotShown // of the time before; f.shown has it
	select {
	case f.arrive <- nil:
	case <-l.done:
		t.Fatal("it is shown, and nothing waits for it")
	}
	<-l.done
	if got, asked := s.content(t, diffID, "file"), r.asked(p.layers[0].String()); got != "hello" || asked != 0 {
		t.Errorf("%q, asked for %d times", got, asked)
	}
}

// A layer that is not shown any more is pulled.
func TestLazyLayerLost(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("hello")}, withTable)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	f.arrive <- lazy.ErrGone
	landedNow(t, s, p.diffIDs[0])
	if s.content(t, p.diffIDs[0], "file") != "hello" || r.asked(p.layers[0].String()) != 1 {
		t.Errorf("asked for %d times", r.asked(p.layers[0].String()))
	}
}

// Regression: a full disk, or a registry that wanted credentials after a restart, had the images
// dropped whose layers were not whole yet.
func TestLazyLayerIsTriedAgain(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("hello")}, withTable)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	diffID := p.diffIDs[0]
	// fails has the layer arrive so, and its landing fail.
	fails := func(arrives, why error) {
		t.Helper()
		s.lazies.mu.Lock()
		l := s.lazies.landings[diffID]
		try := l.try
		s.lazies.mu.Unlock()
		f.arrive <- arrives
		if <-try.ended; !errors.Is(try.err, why) {
			t.Errorf("it failed by %v, want %v", try.err, why)
		}
		if _, err := s.Get(r.ref("app:1")); err != nil {
			t.Fatalf("the image after %v: %v", why, err)
		}
	}
	s.lazies.pause = time.Millisecond
	f.mu.Lock()
	f.full = true
	f.mu.Unlock()
	fails(nil, unix.ENOSPC)
	f.mu.Lock()
	f.full = false
	f.mu.Unlock()
	f.arrive <- lazy.ErrNotShown // after the pause
	f.arrive <- nil              // it is shown again
	landedNow(t, s, diffID)
	if s.content(t, diffID, "file") != "hello" {
		t.Error("the layer is not unpacked")
	}

	private := r.image("app:1", []testLayer{lazyLayer("private")}, withTable)
	_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	diffID = private.diffIDs[0]
	s.reopen(t)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if user, _, _ := req.BasicAuth(); user == "me" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	s.lazies.pause = time.Hour
	fails(lazy.ErrGone, registry.ErrUnauthorized)
	// A pull with credentials does not wait for the end of the pause.
	_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{Auth: Auth{Username: "me", Password: "secret"}})
	must(t, err)
	f.arrive <- lazy.ErrGone
	s.lazies.mu.Lock()
	l := s.lazies.landings[diffID]
	s.lazies.mu.Unlock()
	if l != nil {
		<-l.done
	}
	if s.content(t, diffID, "file") != "private" {
		t.Error("the layer is not pulled")
	}
}

func TestLazyImageRemoved(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("x")}, withTable)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	must(t, s.Remove(t.Context(), r.ref("app:1")))
	landedNow(t, s, p.diffIDs[0])
	if got := s.left(t); got != nothingLeft || len(f.shown) > 0 {
		t.Errorf("%s, shown %v", got, f.shown)
	}
}

func TestLazyOverRestart(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("hello")}, withTable)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	s.reopen(t)
	if _, err := s.Get(r.ref("app:1")); err != nil {
		t.Fatal(err)
	}
	f.arrive <- nil
	landedNow(t, s, p.diffIDs[0])
	if s.content(t, p.diffIDs[0], "file") != "hello" {
		t.Error("the layer is not unpacked")
	}

	r.image("lost:1", []testLayer{lazyLayer("lost")}, withTable)
	_, err = s.Pull(t.Context(), r.ref("lost:1"), PullOptions{})
	must(t, err)
	must(t, s.Close())
	clear(f.shown)
	s.Store, err = Open(s.cfg)
	must(t, err)
	if _, err := s.Get(r.ref("lost:1")); !errors.Is(err, ErrNotFound) {
		t.Errorf("an image whose layer no process shows: %v", err)
	}
}

func TestPulledWhole(t *testing.T) {
	small := gzipLayer(tarOf("file", "x"))
	large := lazyLayer("x")
	for name, tc := range map[string]struct {
		layer  testLayer
		change func(*ocispec.Manifest, *ocispec.Image)
		config func(*Config, *fakeLazy)
	}{
		"small":     {small, withTable, nil},
		"no table":  {large, nil, nil},
		"refused":   {large, withTable, func(_ *Config, f *fakeLazy) { f.refuse = lazy.ErrUnsuitable }},
		"not set":   {large, withTable, func(c *Config, _ *fakeLazy) { clear(c.Registries.Settings) }},
		"keeps":     {large, withTable, func(c *Config, _ *fakeLazy) { c.KeepBlobs = true }},
		"not gzip":  {plainLayer(large.tar), withTable, nil},
		"no shower": {large, withTable, func(c *Config, _ *fakeLazy) { c.Lazy = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFake(t)
			s, f := newLazyStore(t, r)
			if tc.config != nil {
				tc.config(&s.cfg, f)
				s.reopen(t)
			}
			p := r.image("app:1", []testLayer{tc.layer}, tc.change)
			_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			if s.content(t, p.diffIDs[0], "file") != "x" || len(f.shown) != 0 {
				t.Errorf("shown %v", f.shown)
			}
		})
	}
}

// What needs a layer's archive waits for the layer.
func TestSaveWaitsForLazyLayer(t *testing.T) {
	r := newFake(t)
	s, f := newLazyStore(t, r)
	p := r.image("app:1", []testLayer{lazyLayer("x")}, withTable)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.packs.Rebuild(ctx, p.diffIDs[0], &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	f.arrive <- nil
	landedNow(t, s, p.diffIDs[0])
}
