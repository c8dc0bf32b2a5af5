package image

import (
	"fmt"
	"os"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/reference"
)

// manyImages are how many images a store has whose costs should not grow with them.
var manyImages = []int{1, 200, 1000, 3000}

// fill gives a store images of two layers each, one of them shared, as if they had been pulled
// from the registry: repository many, tags from 0.
func fill(b *testing.B, r *fakeRegistry, s *testStore, images int) {
	shared := gzipLayer(tarOf("shared", "1"))
	all := make([]catalog.Entry, images)
	for i := range images {
		layers := []testLayer{shared, gzipLayer(tarOf("own", fmt.Sprint(i)))}
		ref := fmt.Sprint("many:", i)
		p := r.image(ref, layers, nil)
		must(b, os.WriteFile(s.blobs.Path(p.manifest), r.manifests["many@"+p.manifest.String()].data, 0o644))
		must(b, os.WriteFile(s.blobs.Path(p.config), r.blobs[p.config], 0o644))
		for j, l := range layers {
			must(b, os.WriteFile(s.blobs.Path(p.layers[j]), l.data, 0o644))
			must(b, os.MkdirAll(s.layers.path(p.diffIDs[j]), 0o755))
			s.ledger.Learn(p.layers[j], p.diffIDs[j])
		}
		n, err := reference.Parse(r.ref(ref))
		must(b, err)
		top := ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageManifest, Digest: p.manifest,
			Size: int64(len(r.manifests["many@"+p.manifest.String()].data)),
		}
		c, err := s.unpacker.Load(b.Context(), top)
		must(b, err)
		all[i] = catalog.Entry{Name: n, Pulled: catalog.At(time.Now()), Content: c}
	}
	_, err := s.commit(all...)
	must(b, err)
}

// BenchmarkWarmPull pulls an image that is there, next to others.
func BenchmarkWarmPull(b *testing.B) {
	for _, images := range manyImages {
		b.Run(fmt.Sprint(images), func(b *testing.B) {
			r, s := newFake(b), openStore(b, nil)
			fill(b, r, s, images)
			for i := 0; b.Loop(); i++ {
				_, err := s.Pull(b.Context(), r.ref(fmt.Sprint("many:", i%images)), PullOptions{})
				must(b, err)
			}
		})
	}
}

// BenchmarkColdPull pulls images of one tiny layer next to others.
func BenchmarkColdPull(b *testing.B) {
	for _, images := range manyImages {
		b.Run(fmt.Sprint(images), func(b *testing.B) {
			r, s := newFake(b), openStore(b, nil)
			fill(b, r, s, images)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				r.image("new:1", []testLayer{gzipLayer(tarOf("new", fmt.Sprint(i)))}, nil)
				b.StartTimer()
				_, err := s.Pull(b.Context(), r.ref("new:1"), PullOptions{})
				must(b, err)
				b.StopTimer()
				must(b, s.Remove(b.Context(), r.ref("new:1")))
				b.StartTimer()
			}
		})
	}
}

// BenchmarkRemove removes an image next to others.
func BenchmarkRemove(b *testing.B) {
	for _, images := range manyImages {
		b.Run(fmt.Sprint(images), func(b *testing.B) {
			r, s := newFake(b), openStore(b, nil)
			fill(b, r, s, images)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				r.image("new:1", []testLayer{gzipLayer(tarOf("new", fmt.Sprint(i)))}, nil)
				_, err := s.Pull(b.Context(), r.ref("new:1"), PullOptions{})
				must(b, err)
				b.StartTimer()
				must(b, s.Remove(b.Context(), r.ref("new:1")))
			}
		})
	}
}
