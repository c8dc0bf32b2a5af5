package image

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/registry"
)

func TestTag(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	a := r.image("a:1", []testLayer{gzipLayer(tarOf("a", "1"))}, nil)
	b := r.image("b:1", []testLayer{gzipLayer(tarOf("b", "1"))}, nil)
	for _, ref := range []string{"a:1", "b:1"} {
		_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
		must(t, err)
	}
	img, err := s.Tag(t.Context(), a.config.Encoded()[:8], "team/app")
	must(t, err)
	if img.ID != a.config || !slices.Contains(img.RepoTags, "docker.io/team/app:latest") {
		t.Errorf("tagged %s %q", img.ID, img.RepoTags)
	}
	// The name moves, and a restart finds it where it is.
	_, err = s.Tag(t.Context(), r.ref("b:1"), "team/app:latest")
	must(t, err)
	s.reopen(t)
	if img, err := s.Get("team/app"); err != nil || img.ID != b.config {
		t.Errorf("after the move: %s, %v", img.ID, err)
	}
	if img, err := s.Get(r.ref("a:1")); err != nil || len(img.RepoTags) != 1 {
		t.Errorf("the other image: %q, %v", img.RepoTags, err)
	}
	for _, tc := range []struct {
		from, to string
		want     error
	}{
		{"none:1", "x:1", ErrNotFound},
		{r.ref("a:1"), "Not A Name", ErrInvalidReference},
		{r.ref("a:1"), "x@" + string(b.config), ErrInvalidReference},
		{r.ref("a:1"), string(b.config), ErrInvalidReference},
	} {
		if _, err := s.Tag(t.Context(), tc.from, tc.to); !errors.Is(err, tc.want) {
			t.Errorf("tag %s %s: %v, want %v", tc.from, tc.to, err, tc.want)
		}
	}
}

func TestUntag(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	shared := gzipLayer(tarOf("shared", "1"))
	a := r.image("a:1", []testLayer{shared, gzipLayer(tarOf("a", "1"))}, nil)
	r.image("b:1", []testLayer{shared}, nil)
	for _, ref := range []string{"a:1", "b:1"} {
		_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
		must(t, err)
	}
	_, err := s.Tag(t.Context(), r.ref("a:1"), "cafe12:1")
	must(t, err)

	got, err := s.Untag(t.Context(), "cafe12:1")
	must(t, err)
	if !slices.Equal(got.Names, []string{"docker.io/library/cafe12:1"}) || got.ID != "" || got.Bytes != 0 {
		t.Errorf("one of two names: %+v", got)
	}
	_, err = s.Tag(t.Context(), r.ref("a:1"), "again:1")
	must(t, err)
	got, err = s.Untag(t.Context(), a.config.Encoded()[:12])
	must(t, err)
	if len(got.Names) != 2 || got.ID != a.config || got.Bytes < 3*4096 {
		t.Errorf("by id: %+v", got)
	}
	if left := s.left(t); !strings.HasPrefix(left, "images 1 blobs 3 layers 1") {
		t.Errorf("the shared layer's image: %s", left)
	}
	img, err := s.Get(r.ref("b:1"))
	must(t, err)
	got, err = s.Untag(t.Context(), img.RepoDigests[0])
	must(t, err)
	if got.ID == "" || s.left(t) != nothingLeft {
		t.Errorf("by digest: %+v, %s", got, s.left(t))
	}
	if _, err := s.Untag(t.Context(), r.ref("a:1")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a second time: %v", err)
	}
}

func TestDocuments(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	a := r.image("a:1", []testLayer{gzipLayer(tarOf("a", "1"))}, nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	img, docs, err := s.Documents(t.Context(), r.ref("a:1"))
	must(t, err)
	if img.ID != a.config || registry.Verify(docs.Config, a.config) != nil || registry.Verify(docs.Manifest, a.manifest) != nil {
		t.Errorf("documents of %s: %s %s", img.ID, docs.Manifest, docs.Config)
	}
	if _, _, err := s.Documents(t.Context(), "none:1"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	for _, b := range s.Blobs() {
		if !slices.Equal(b.Images, []digest.Digest{a.config}) || b.Bytes == 0 {
			t.Errorf("blob %+v", b)
		}
	}
}

// What has become of an image since it was looked at decides whether it goes, and with it
// goes what the ledger knew of its layers.
func TestRemoveIf(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("a:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	_, err = s.Tag(t.Context(), r.ref("a:1"), "just/tagged:1")
	must(t, err)
	gone, err := s.RemoveIf(t.Context(), p.config, func(now Image) bool { return len(now.RepoTags) == 1 })
	must(t, err)
	if gone.ID != "" || len(s.List()) != 1 || s.ledger.Len() != 3 {
		t.Errorf("a tagged image: %+v", gone)
	}
	gone, err = s.RemoveIf(t.Context(), p.config, func(Image) bool { return true })
	must(t, err)
	if gone.ID != p.config || len(gone.Names) != 2 || gone.Bytes == 0 || s.left(t) != nothingLeft {
		t.Errorf("%+v; %s", gone, s.left(t))
	}
	gone, err = s.RemoveIf(t.Context(), p.config, func(Image) bool { return true })
	if gone.ID != "" || err != nil {
		t.Errorf("again: %+v, %v", gone, err)
	}
	// By CRI's removal, too.
	_, err = s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	must(t, s.Remove(t.Context(), r.ref("a:1")))
	if n := s.ledger.Len(); n != 0 {
		t.Errorf("the ledger knows %d layers that are gone", n)
	}
}
