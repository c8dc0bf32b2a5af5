package ingest

import (
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A layer that another pull waits for goes on after its pull has failed; the next pull of the same
// tag, which has fewer layers by now, has nothing to do with it.
func TestPartOutlivesItsPull(t *testing.T) {
	layer := func(name string) ocispec.Descriptor {
		return ocispec.Descriptor{Digest: digest.FromString(name), Size: 10}
	}
	var told []LayerProgress
	m := &Meter{watchers: []*Watcher{{Layer: func(l LayerProgress) { told = append(told, l) }}}}
	old := m.ExpectLayers([]ocispec.Descriptor{layer("a"), layer("b")})
	now := m.ExpectLayers([]ocispec.Descriptor{layer("c")})
	told = nil
	for _, p := range slices.Concat(old, now) {
		p.Add(4)
		p.Complete()
	}
	c := LayerProgress{Digest: digest.FromString("c"), Done: 4, Total: 10}
	whole := c
	whole.Complete = true
	if !slices.Equal(told, []LayerProgress{c, whole}) {
		t.Errorf("told %+v", told)
	}
}
