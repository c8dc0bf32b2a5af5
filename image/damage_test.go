package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/unpack"
)

// Archive makes the archive of the layer from its files and its recipe.
func (l *dirLayers) Archive(ctx context.Context, d digest.Digest, w io.Writer) error {
	l.mu.Lock()
	l.archived++
	if l.through != nil {
		w = io.MultiWriter(l.through, w)
	}
	l.mu.Unlock()
	recipe, err := os.Open(l.recipe(l.path(d)))
	if err != nil {
		return err
	}
	defer recipe.Close()
	h := d.Verifier()
	if err := unpack.Rebuild(ctx, recipe, l.path(d), io.MultiWriter(w, h)); err != nil {
		return err
	}
	if !h.Verified() {
		return unpack.ErrDamaged
	}
	return nil
}

// ArchiveSize is how large the layer's archive is, by its recipe.
func (l *dirLayers) ArchiveSize(ctx context.Context, d digest.Digest) (int64, error) {
	recipe, err := os.Open(l.recipe(l.path(d)))
	if err != nil {
		return 0, err
	}
	defer recipe.Close()
	return unpack.RebuiltSize(ctx, recipe)
}

// blobReads is how many blobs were asked for.
func (r *fakeRegistry) blobReads() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, k := range r.requests {
		if strings.Contains(path, "/blobs/") {
			n += k
		}
	}
	return n
}

func TestDamagedIndex(t *testing.T) {
	entry := fmt.Sprintf(`{"digest":%q,"size":1}`, digest.FromString("x"))
	for name, damage := range map[string]func(string) string{
		"no JSON":      func(string) string { return "{" },
		"cut off":      func(s string) string { return s[:len(s)/2] },
		"empty":        func(string) string { return "" },
		"bad digest":   func(s string) string { return strings.Replace(s, "sha256:", "sha256:..", 1) },
		"entry added":  func(s string) string { return strings.Replace(s, `"manifests":[`, `"manifests":[`+entry+",", 1) },
		"wrong kind":   func(s string) string { return strings.Replace(s, `"manifests":[`, `"manifests":[7,`, 1) },
		"another kind": func(string) string { return "[]" },
	} {
		for _, keep := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, blobs kept %v", name, keep), func(t *testing.T) {
				r, s := newFake(t), openStore(t, func(c *Config) { c.KeepBlobs = keep })
				r.image("app:1", threeLayers(), nil)
				_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
				must(t, err)
				data, err := os.ReadFile(s.blobs.IndexFile())
				must(t, err)
				must(t, os.WriteFile(s.blobs.IndexFile(), []byte(damage(string(data))), 0o644))
				s.reopen(t)
				aside, _ := filepath.Glob(s.blobs.IndexFile() + ".damaged-*")
				if len(aside) != 1 {
					t.Errorf("set aside: %v", aside)
				}
				before := r.blobReads()
				_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
				must(t, err)
				if n := r.blobReads() - before; n > 1 { // the configuration
					t.Errorf("pulling again fetched %d blobs", n)
				}
				s.reopen(t)
				want := "images 1 blobs 2 layers 3 ingest 0 staging 0"
				if keep {
					want = "images 1 blobs 5 layers 3 ingest 0 staging 0"
				}
				if got := s.left(t); got != want {
					t.Error(got)
				}
			})
		}
	}
}

func TestDamagedLedger(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"junk":      func([]byte) []byte { return bytes.Repeat([]byte("junk"), 5000) },
		"truncated": func(b []byte) []byte { return b[:9000] },
		"empty":     func([]byte) []byte { return nil },
		"zeroed": func(b []byte) []byte {
			clear(b[8192:])
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := newFake(t), openStore(t, func(c *Config) { c.KeepBlobs = false })
			r.image("app:1", threeLayers(), nil)
			_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			must(t, s.Close())
			data, err := os.ReadFile(s.blobs.LedgerFile())
			must(t, err)
			must(t, os.WriteFile(s.blobs.LedgerFile(), damage(data), 0o600))
			s.Store = nil
			s.reopen(t)
			if _, err := s.Get(r.ref("app:1")); err != nil {
				t.Error(err)
			}
			_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
		})
	}
}

// The store opens whatever is at the paths of its files, and images can be pulled again.
func TestStrangeStore(t *testing.T) {
	dir := func(path string) error {
		return errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Join(path, "x"), 0o755))
	}
	file := func(path, data string) error {
		return errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte(data), 0o644))
	}
	pipe := func(path string) error { return errors.Join(os.RemoveAll(path), unix.Mkfifo(path, 0o600)) }
	nowhere := func(path string) error { return errors.Join(os.RemoveAll(path), os.Symlink("/nowhere/at/all", path)) }
	for name, tc := range map[string]struct {
		damage  func(l blobs.Layout, p pushed) error
		kept    int // things set aside
		fetched int // blobs, when the image is pulled again: of a lost one at least the configuration
	}{
		"index is a directory":   {func(l blobs.Layout, _ pushed) error { return dir(l.IndexFile()) }, 1, 1},
		"index is a pipe":        {func(l blobs.Layout, _ pushed) error { return pipe(l.IndexFile()) }, 1, 1},
		"ledger is a directory":  {func(l blobs.Layout, _ pushed) error { return dir(l.LedgerFile()) }, 1, 0},
		"ledger is a pipe":       {func(l blobs.Layout, _ pushed) error { return pipe(l.LedgerFile()) }, 1, 0},
		"blobs are a file":       {func(l blobs.Layout, _ pushed) error { return file(filepath.Dir(l.Dir()), "") }, 1, 4},
		"sha256 is a file":       {func(l blobs.Layout, _ pushed) error { return file(l.Dir(), "") }, 1, 4},
		"sha256 leads nowhere":   {func(l blobs.Layout, _ pushed) error { return nowhere(l.Dir()) }, 1, 4},
		"document is a dir":      {func(l blobs.Layout, p pushed) error { return dir(l.Path(p.config)) }, 1, 1},
		"document is a pipe":     {func(l blobs.Layout, p pushed) error { return pipe(l.Path(p.manifest)) }, 1, 1},
		"layer's blob is a dir":  {func(l blobs.Layout, p pushed) error { return dir(l.Path(p.layers[0])) }, 1, 1},
		"ingest is a file":       {func(l blobs.Layout, _ pushed) error { return file(l.Ingest(), "") }, 0, 0},
		"temporary is a dir":     {func(l blobs.Layout, _ pushed) error { return dir(filepath.Join(l.Root, ".atomic-1-1")) }, 0, 0},
		"oci-layout is junk":     {func(l blobs.Layout, _ pushed) error { return file(l.Root+"/oci-layout", "\x00\x00") }, 1, 0},
		"oci-layout is empty":    {func(l blobs.Layout, _ pushed) error { return file(l.Root+"/oci-layout", "") }, 1, 0},
		"oci-layout is a dir":    {func(l blobs.Layout, _ pushed) error { return dir(l.Root + "/oci-layout") }, 1, 0},
		"oci-layout of tomorrow": {func(l blobs.Layout, _ pushed) error { return file(l.Root+"/oci-layout", `{"imageLayoutVersion":"9"}`) }, 1, 0},
		"oci-layout is missing":  {func(l blobs.Layout, _ pushed) error { return os.Remove(l.Root + "/oci-layout") }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := newFake(t), openStore(t, nil)
			p := r.image("app:1", threeLayers(), nil)
			_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			must(t, s.Close())
			must(t, tc.damage(s.blobs.Layout, p))
			s.Store = nil
			s.reopen(t)
			if kept, err := filepath.Glob(s.blobs.Root + "/*.damaged-*"); err != nil || len(kept) != tc.kept {
				t.Errorf("set aside: %v, %v", kept, err)
			}
			before := r.blobReads()
			_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			if n := r.blobReads() - before; n != tc.fetched {
				t.Errorf("%d blobs fetched, want %d", n, tc.fetched)
			}
			s.reopen(t)
			if got := s.left(t); got != "images 1 blobs 5 layers 3 ingest 0 staging 0" {
				t.Error(got)
			}
			if data, err := os.ReadFile(s.blobs.Root + "/oci-layout"); err != nil || string(data) != `{"imageLayoutVersion":"1.0.0"}` {
				t.Errorf("oci-layout is %q, %v", data, err)
			}
			if v, err := s.Verify(t.Context(), VerifyOptions{}); err != nil || len(v.Damaged) != 0 || v.Blobs != 3 || v.Layers != 3 {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

// Layers are known again by the blobs that they came from, so that images share them
// without the blobs; what only claims to be one is fetched and looked at.
func TestWithoutBlobs(t *testing.T) {
	r, s := newFake(t), openStore(t, func(c *Config) { c.KeepBlobs = false })
	shared := gzipLayer(tarOf("shared", "1"))
	r.image("a:1", []testLayer{shared, gzipLayer(tarOf("a", "1"))}, nil)
	r.image("b:1", []testLayer{shared, gzipLayer(tarOf("b", "1"))}, nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	if got := s.left(t); got != "images 1 blobs 2 layers 2 ingest 0 staging 0" {
		t.Error(got)
	}
	s.reopen(t)
	before := r.blobReads()
	_, err = s.Pull(t.Context(), r.ref("b:1"), PullOptions{})
	must(t, err)
	if n := r.blobReads() - before; n != 2 { // configuration, one layer
		t.Errorf("%d blobs fetched", n)
	}
	lie := gzipLayer(tarOf("another", "1"))
	lie.tar = shared.tar
	r.image("lie:1", []testLayer{lie}, nil)
	if _, err := s.Pull(t.Context(), r.ref("lie:1"), PullOptions{}); !errors.Is(err, ErrInvalidImage) {
		t.Errorf("a blob that does not unpack to the layer it claims: %v", err)
	}
	must(t, s.Remove(t.Context(), r.ref("a:1")))
	must(t, s.Remove(t.Context(), r.ref("b:1")))
	if got := s.left(t); got != nothingLeft {
		t.Error(got)
	}
}

func TestBlobsGoWhenTheyAreNotKeptAnyMore(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("app:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	s.cfg.KeepBlobs = false
	s.reopen(t)
	if got := s.left(t); got != "images 1 blobs 2 layers 3 ingest 0 staging 0" {
		t.Error(got)
	}
}

func TestVerifyAndRepair(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("app:1", []testLayer{gzipLayer(tarOf("f", "content")), gzipLayer(tarOf("g", "more"))}, nil)
	other := r.image("other:1", []testLayer{gzipLayer(tarOf("h", "x"))}, nil)
	pull := func() {
		for _, ref := range []string{"app:1", "other:1"} {
			_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
			must(t, err)
		}
	}
	for name, tc := range map[string]struct {
		damage func() error
		kind   string
		digest digest.Digest
	}{
		"layer's file changed": {func() error {
			return os.WriteFile(filepath.Join(s.layers.path(p.diffIDs[0]), "f"), []byte("CONTENT"), 0o600)
		}, "layer", p.diffIDs[0]},
		"layer's file gone": {func() error { return os.Remove(filepath.Join(s.layers.path(p.diffIDs[1]), "g")) }, "layer", p.diffIDs[1]},
		"layer gone":        {func() error { return os.RemoveAll(s.layers.path(p.diffIDs[1])) }, "layer", p.diffIDs[1]},
		"blob changed":      {func() error { return os.WriteFile(s.blobs.Path(p.layers[0]), []byte("x"), 0o600) }, "blob", p.layers[0]},
		"configuration":     {func() error { return os.WriteFile(s.blobs.Path(p.config), []byte("{}"), 0o600) }, "document", p.config},
		"manifest gone":     {func() error { return os.Remove(s.blobs.Path(p.manifest)) }, "document", p.manifest},
	} {
		pull()
		v, err := s.Verify(t.Context(), VerifyOptions{})
		if err != nil || len(v.Damaged) != 0 || v.Documents != 4 || v.Blobs != 3 || v.Layers != 3 {
			t.Fatalf("%s: before: %+v, %v", name, v, err)
		}
		must(t, tc.damage())
		v, err = s.Verify(t.Context(), VerifyOptions{})
		if err != nil || len(v.Damaged) != 1 || v.Damaged[0].Kind != tc.kind || v.Damaged[0].Digest != tc.digest ||
			!slices.Equal(v.Damaged[0].Images, []string{r.ref("app:1")}) {
			t.Errorf("%s: found %+v, %v", name, v, err)
		}
		if _, err := s.Get(r.ref("app:1")); err != nil {
			t.Errorf("%s: reporting removed the image: %v", name, err)
		}
		if v, err := s.Verify(t.Context(), VerifyOptions{Images: []string{r.ref("other:1")}}); err != nil || len(v.Damaged) != 0 ||
			v.Layers != 1 {
			t.Errorf("%s: the other image: %+v, %v", name, v, err)
		}
		v, err = s.Verify(t.Context(), VerifyOptions{Repair: RefetchDamaged})
		if err != nil || len(v.Dropped) != 0 || tc.kind != "blob" && !slices.Equal(v.Refetched, []string{r.ref("app:1")}) {
			t.Errorf("%s: repair: %+v, %v", name, v, err)
		}
		v, err = s.Verify(t.Context(), VerifyOptions{})
		if err != nil || len(v.Damaged) != 0 || v.Layers != 3 {
			t.Errorf("%s: after the repair: %+v, %v", name, v, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(s.layers.path(p.diffIDs[0]), "f"), nil, 0o600))
	v, err := s.Verify(t.Context(), VerifyOptions{Repair: DropDamaged})
	if err != nil || !slices.Equal(slices.Collect(maps.Keys(v.Dropped)), []string{r.ref("app:1")}) {
		t.Errorf("drop: %+v, %v", v, err)
	}
	if _, err := s.Get(r.ref("app:1")); !errors.Is(err, ErrNotFound) {
		t.Errorf("the damaged image: %v", err)
	}
	if got := s.left(t); got != "images 1 blobs 3 layers 1 ingest 0 staging 0" {
		t.Error(got)
	}
	must(t, os.RemoveAll(s.layers.path(other.diffIDs[0])))
	r.Close()
	v, err = s.Verify(t.Context(), VerifyOptions{Repair: RefetchDamaged})
	if err != nil || v.Dropped[r.ref("other:1")] == nil {
		t.Errorf("without a registry: %+v, %v", v, err)
	}
}

// Regression: images that were removed or moved while others were read counted as damaged, and the
// image that had got the name was dropped.
func TestVerifyWhileImagesChange(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	pull := func(name, content string) pushed {
		t.Helper()
		p := r.image(name, []testLayer{gzipLayer(tarOf("f", content))}, nil)
		_, err := s.Pull(t.Context(), r.ref(name), PullOptions{})
		must(t, err)
		return p
	}
	verify := func(repair Repair, meanwhile func()) Verified {
		t.Helper()
		v, err := s.Verify(t.Context(), VerifyOptions{Repair: repair, Progress: func(string, digest.Digest) {
			meanwhile()
			meanwhile = func() {}
		}})
		must(t, err)
		return v
	}
	pull("a:1", "a")
	pull("gone:1", "gone")
	pull("moved:1", "before")
	v := verify(DropDamaged, func() {
		must(t, s.Remove(t.Context(), r.ref("gone:1")))
		must(t, s.Remove(t.Context(), r.ref("moved:1")))
		pull("moved:1", "after")
	})
	if len(v.Damaged) > 0 || len(v.Dropped) > 0 {
		t.Errorf("without damage: %+v", v)
	}
	if _, err := s.Get(r.ref("moved:1")); err != nil {
		t.Errorf("the image that has the name now: %v", err)
	}

	// It is moved after it was found damaged.
	damaged, err := s.Get(r.ref("a:1"))
	must(t, err)
	must(t, os.RemoveAll(s.layers.path(damaged.Layers[0])))
	last := pull("last:1", "last")
	v, err = s.Verify(t.Context(), VerifyOptions{Repair: RefetchDamaged, Progress: func(_ string, d digest.Digest) {
		if d == last.manifest {
			pull("a:1", "whole")
		}
	}})
	must(t, err)
	byDigest := damaged.RepoDigests[0]
	if len(v.Damaged) != 1 || !slices.Equal(v.Refetched, []string{byDigest}) || len(v.Dropped) > 0 {
		t.Errorf("moved after it was read: %+v", v)
	}
	if img, err := s.Get(r.ref("a:1")); err != nil || img.ID == damaged.ID || !s.layers.HasLayer(img.Layers[0]) {
		t.Errorf("the image that has the name now: %+v, %v", img, err)
	}
}

// Regression: the credentials for one registry were sent to all whose images were damaged.
func TestVerifyWithCredentials(t *testing.T) {
	mine, another, s := newFake(t), newFake(t), openStore(t, nil)
	var users []string
	mine.intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		user, _, _ := req.BasicAuth()
		users = append(users, user)
		return false
	}
	for _, r := range []*fakeRegistry{mine, another} {
		p := r.image("app:1", []testLayer{gzipLayer(tarOf("f", r.host()))}, nil)
		_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
		must(t, err)
		must(t, os.RemoveAll(s.layers.path(p.diffIDs[0])))
	}
	users = nil
	o := VerifyOptions{Repair: RefetchDamaged, Auth: Auth{Username: "me", Password: "secret"}}
	v, err := s.Verify(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "name the images of one registry") || len(v.Damaged) > 0 || len(users) > 0 {
		t.Errorf("two registries: %+v, %v, asked by %q", v, err, users)
	}
	for _, r := range []*fakeRegistry{mine, another} {
		if _, err := s.Get(r.ref("app:1")); err != nil {
			t.Errorf("a refusal removed an image: %v", err)
		}
	}
	o.Images = []string{mine.ref("app:1")}
	if v, err = s.Verify(t.Context(), o); err != nil || !slices.Equal(v.Refetched, o.Images) {
		t.Errorf("one registry: %+v, %v", v, err)
	}
	v, err = s.Verify(t.Context(), VerifyOptions{Repair: RefetchDamaged})
	if err != nil || !slices.Equal(v.Refetched, []string{another.ref("app:1")}) {
		t.Errorf("without credentials: %+v, %v", v, err)
	}
}

// What was salvaged of a lost image is collected when it is given up, and the bytes are told.
func TestReleaseSalvaged(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("app:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	must(t, os.WriteFile(s.blobs.IndexFile(), []byte("{"), 0o644))
	s.reopen(t)
	kept, _, err := s.Usage()
	must(t, err)
	if freed, err := s.Collect(t.Context()); freed != 0 || err != nil || kept == 0 {
		t.Errorf("%d bytes of %d collected that are kept for a day, %v", freed, kept, err)
	}
	must(t, s.ReleaseSalvaged(t.Context()))
	if freed, err := s.Collect(t.Context()); freed != kept || err != nil {
		t.Errorf("%d bytes of %d collected, %v", freed, kept, err)
	}
	if got := s.left(t); got != nothingLeft {
		t.Error(got)
	}
}

func TestLease(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("app:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	must(t, s.Lease(t.Context(), "mine", time.Hour, p.diffIDs[0], p.config))
	must(t, s.Remove(t.Context(), r.ref("app:1")))
	for range 2 {
		if got := s.left(t); got != "images 0 blobs 1 layers 1 ingest 0 staging 0" {
			t.Error(got)
		}
		s.reopen(t)
	}
	must(t, s.Release(t.Context(), "mine"))
	must(t, s.Release(t.Context(), "never heard of"))
	must(t, s.GC(t.Context()))
	if got := s.left(t); got != nothingLeft {
		t.Error(got)
	}
	for _, err := range []error{
		s.Lease(t.Context(), "", time.Hour), s.Lease(t.Context(), "a", 0), s.Lease(t.Context(), "a", time.Hour, "sha256:.."),
	} {
		if err == nil {
			t.Error("a bad lease is taken")
		}
	}
}
