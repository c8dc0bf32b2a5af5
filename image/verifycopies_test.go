package image

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/unpack"
)

// copiedLayers are layers with copies.
type copiedLayers struct {
	*dirLayers
	copies map[digest.Digest]error // how each is damaged
}

func (c *copiedLayers) HasCopy(d digest.Digest) bool {
	_, ok := c.copies[d]
	return ok
}
func (c *copiedLayers) CheckCopies(_ context.Context, d digest.Digest) error { return c.copies[d] }
func (c *copiedLayers) DropCopies(d digest.Digest) error {
	delete(c.copies, d)
	return nil
}

// Copies of layers are read, too. A damaged one is only taken out of use, since it is made again:
// no image is dropped for it.
func TestVerifyCopies(t *testing.T) {
	c := &copiedLayers{copies: map[digest.Digest]error{}}
	r, s := newFake(t), openStore(t, func(cfg *Config) {
		c.dirLayers = cfg.Layers.(*dirLayers)
		cfg.Layers = c
	})
	p := r.image("app:1", []testLayer{gzipLayer(tarOf("f", "content")), gzipLayer(tarOf("g", "more"))}, nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	read := func(repair Repair) (Verified, []string) {
		t.Helper()
		var kinds []string
		v, err := s.Verify(t.Context(), VerifyOptions{Repair: repair, Progress: func(kind string, _ digest.Digest) {
			kinds = append(kinds, kind)
		}})
		must(t, err)
		return v, kinds
	}
	if v, kinds := read(ReportDamage); len(v.Damaged) != 0 || slices.Contains(kinds, "copy") {
		t.Errorf("without copies: %+v, read %v", v, kinds)
	}
	c.copies[p.diffIDs[0]], c.copies[p.diffIDs[1]] = nil, unpack.ErrDamaged
	v, kinds := read(ReportDamage)
	if len(v.Damaged) != 1 || v.Damaged[0].Kind != "copy" || v.Damaged[0].Digest != p.diffIDs[1] || v.Layers != 2 ||
		!slices.Contains(kinds, "copy") {
		t.Errorf("found %+v, read %v", v, kinds)
	}
	if v, _ := read(RefetchDamaged); len(v.Damaged) != 1 || len(v.Refetched)+len(v.Dropped) != 0 || c.HasCopy(p.diffIDs[1]) ||
		!c.HasCopy(p.diffIDs[0]) {
		t.Errorf("repair: %+v, left %v", v, c.copies)
	}
	if v, _ := read(ReportDamage); len(v.Damaged) != 0 {
		t.Errorf("after the repair: %+v", v)
	}
	// Of a damaged layer no copy can be said to be right or wrong.
	c.copies[p.diffIDs[0]] = unpack.ErrDamaged
	must(t, os.Remove(filepath.Join(s.layers.path(p.diffIDs[0]), "f")))
	if v, _ := read(ReportDamage); len(v.Damaged) != 1 || v.Damaged[0].Kind != "layer" {
		t.Errorf("a damaged layer: %+v", v)
	}
}

// Regression: of a layer that is not packed only the blob was read, since that has the same digest.
func TestVerifyPlainLayer(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("app:1", []testLayer{plainLayer(tarOf("f", "content"))}, nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	must(t, os.Remove(filepath.Join(s.layers.path(p.diffIDs[0]), "f")))
	v, err := s.Verify(t.Context(), VerifyOptions{})
	if err != nil || len(v.Damaged) != 1 || v.Damaged[0].Kind != "layer" || v.Blobs != 1 || v.Layers != 0 {
		t.Errorf("found %+v, %v", v, err)
	}
}
