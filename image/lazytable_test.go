package image

import (
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/lazy"
)

// No one has compared a lazy layer with its diff id: it counts for images of the same blob alone,
// or one that lies about its diff id would be what runs in another's place.
func TestLazyLayerIsNoOtherImages(t *testing.T) {
	for name, change := range map[string]func(*ocispec.Manifest, *ocispec.Image){"not lazy itself": nil, "lazy itself": withTable} {
		t.Run(name, func(t *testing.T) {
			r := newFake(t)
			s, f := newLazyStore(t, r)
			good := lazyLayer("good")
			diffID := digest.FromBytes(good.tar)
			r.image("liar:1", []testLayer{lazyLayer("evil")}, func(m *ocispec.Manifest, c *ocispec.Image) {
				withTable(m, c)
				c.RootFS.DiffIDs[0] = diffID
			})
			_, err := s.Pull(t.Context(), r.ref("liar:1"), PullOptions{})
			must(t, err)
			r.image("good:1", []testLayer{good}, change)
			_, err = s.Pull(t.Context(), r.ref("good:1"), PullOptions{})
			must(t, err)
			if got := s.content(t, diffID, "file"); got != "good" {
				t.Errorf("the layer says %q", got)
			}
			f.arrive <- nil
			landedNow(t, s, diffID)
		})
	}
}

// TestLazyLayerOfAnotherTable: a registry that shows a trusted image's blob and diff id by a table
// of contents of its own, and never sends the blob, does not decide which files the trusted image
// has.
func TestLazyLayerOfAnotherTable(t *testing.T) {
	evilTable := func(m *ocispec.Manifest, _ *ocispec.Image) {
		m.Layers[0].Annotations = map[string]string{lazy.TOCAnnotation: digest.FromString("evil table").String()}
	}
	for name, change := range map[string]func(*ocispec.Manifest, *ocispec.Image){"not lazy itself": nil, "lazy itself": withTable} {
		t.Run(name, func(t *testing.T) {
			r := newFake(t)
			s, f := newLazyStore(t, r)
			s.lazies.pause = time.Millisecond
			layer := lazyLayer("good")
			diffID := digest.FromBytes(layer.tar)
			r.image("evil:1", []testLayer{layer}, evilTable)
			_, err := s.Pull(t.Context(), r.ref("evil:1"), PullOptions{})
			must(t, err)
			if f.shown[diffID].TOC != digest.FromString("evil table") {
				t.Fatal("control: the evil layer is not shown")
			}
			r.image("good:1", []testLayer{layer}, change)
			_, err = s.Pull(t.Context(), r.ref("good:1"), PullOptions{})
			must(t, err)
			// The evil layer is still shown. New roots are made of the verified one.
			if !f.HasLayer(diffID) {
				t.Fatal("the trusted image has a layer that is shown by another's table of contents")
			}
			if got := s.content(t, diffID, "file"); got != "good" {
				t.Errorf("the layer says %q", got)
			}
			s.reopen(t)
			if _, err := s.Get(r.ref("good:1")); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
	t.Run("after the trusted one", func(t *testing.T) {
		r := newFake(t)
		s, f := newLazyStore(t, r)
		layer := lazyLayer("good")
		diffID := digest.FromBytes(layer.tar)
		r.image("good:1", []testLayer{layer}, withTable)
		_, err := s.Pull(t.Context(), r.ref("good:1"), PullOptions{})
		must(t, err)
		r.image("evil:1", []testLayer{layer}, evilTable)
		_, err = s.Pull(t.Context(), r.ref("evil:1"), PullOptions{})
		must(t, err)
		if f.shown[diffID].TOC != digest.FromString("table") || !f.HasLayer(diffID) {
			t.Errorf("shown by table %s, whole %t", f.shown[diffID].TOC, f.HasLayer(diffID))
		}
	})
	// A repair of some images leaves others without their damaged layer.
	t.Run("after the trusted one was damaged", func(t *testing.T) {
		r := newFake(t)
		s, f := newLazyStore(t, r)
		layer := lazyLayer("good")
		diffID := digest.FromBytes(layer.tar)
		r.image("good:1", []testLayer{layer}, nil)
		_, err := s.Pull(t.Context(), r.ref("good:1"), PullOptions{})
		must(t, err)
		must(t, f.Quarantine(diffID))
		r.image("evil:1", []testLayer{layer}, evilTable)
		_, err = s.Pull(t.Context(), r.ref("evil:1"), PullOptions{})
		must(t, err)
		if len(f.shown) != 0 || !f.HasLayer(diffID) {
			t.Errorf("shown %v, whole %t", f.shown, f.HasLayer(diffID))
		}
	})
}
