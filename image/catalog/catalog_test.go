package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
)

// randomEntry is one of few names for one of few images of few layers.
func randomEntry(rnd *rand.Rand, now int64) Entry {
	of := func(what string, n int) digest.Digest { return digest.FromString(fmt.Sprint(what, rnd.IntN(n))) }
	n := reference.Name{Repo: fmt.Sprint("r.example/", rnd.IntN(3)), Domain: "r.example", Path: "x", Tag: fmt.Sprint(rnd.IntN(3))}
	id := rnd.IntN(5)
	top := digest.FromString(fmt.Sprint("top", id))
	if rnd.IntN(4) == 0 {
		n.Tag, n.Digest = "", top
	}
	config := ocispec.Descriptor{Digest: digest.FromString(fmt.Sprint("config", id/2)), Size: int64(id)}
	layers := []ocispec.Descriptor{{Digest: of("blob", 4)}, {Digest: of("blob", 4)}}
	return Entry{Name: n, Pulled: At(time.Unix(now, 0)), Content: &manifest.Content{
		Top:      ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: top, Size: int64(id)},
		Manifest: top, Config: config, Layers: layers,
		Image:     &ocispec.Image{RootFS: ocispec.RootFS{DiffIDs: []digest.Digest{of("diff", 4), of("diff", 4)}}},
		Documents: map[digest.Digest][]byte{top: nil, config.Digest: nil},
	}}
}

// After any changes, a catalog equals a new one of the same entries, and so do the uses.
func TestCatalogChanges(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		c := newCatalog(nil, "", Pinned{"r.example/1:*"})
		var u uses
		for step := range int64(100) {
			var ch change
			before := c
			if rnd.IntN(3) > 0 {
				images := []Entry{randomEntry(rnd, step*2)}
				if rnd.IntN(2) > 0 {
					images = append(images, randomEntry(rnd, step*2+1))
				}
				c, ch = c.with(images...)
				for _, e := range images[len(images)-1:] {
					if got, k := c.named(e.Name); k == nil || got.Content != e.Content {
						t.Fatalf("seed %d, step %d: %s is not what was pulled", seed, step, e.Name)
					}
				}
			} else {
				repo := fmt.Sprint("r.example/", rnd.IntN(3))
				c, ch = c.without(func(e Entry) bool { return e.Name.Repo == repo })
				if slices.ContainsFunc(c.Entries, func(e Entry) bool { return e.Name.Repo == repo }) {
					t.Fatalf("seed %d, step %d: names of %s are left", seed, step, repo)
				}
			}
			unneeded := u.change(ch, true)
			fresh := newCatalog(c.Entries, "", c.pinned)
			if got, want := views(c), views(fresh); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d:\n%+v, new:\n%+v", seed, step, got, want)
			}
			if !maps.Equal(c.ids, fresh.ids) {
				t.Fatalf("seed %d, step %d: names %v, new %v", seed, step, c.ids, fresh.ids)
			}
			var all uses
			all.change(change{come: c.Entries}, true)
			if !maps.Equal(u.blobs, all.blobs) && len(u.blobs)+len(all.blobs) > 0 || !maps.Equal(u.layers, all.layers) &&
				len(u.layers)+len(all.layers) > 0 {
				t.Fatalf("seed %d, step %d: uses %v %v, counted again %v %v", seed, step, u.blobs, u.layers, all.blobs, all.layers)
			}
			var had uses
			had.change(change{come: before.Entries}, true)
			for d := range had.layers {
				if unneeded.Layers[d] == all.layer(d) {
					t.Fatalf("seed %d, step %d: layer %s unneeded: %v, in use: %v", seed, step, d, unneeded.Layers[d], all.layer(d))
				}
			}
			for d := range had.blobs {
				if unneeded.Blobs[d] == all.blob(d) {
					t.Fatalf("seed %d, step %d: blob %s unneeded: %v, in use: %v", seed, step, d, unneeded.Blobs[d], all.blob(d))
				}
			}
		}
	}
}

// views are a catalog's images.
func views(c *Catalog) (all []Image) {
	for _, img := range c.list() {
		all = append(all, img.View())
	}
	return all
}

// A change costs nothing for images that stay as they are: not even their line of the index is made
// again.
func TestCatalogKeepsWhatStays(t *testing.T) {
	l := File(filepath.Join(t.TempDir(), "index.json"))
	rnd := rand.New(rand.NewPCG(1, 2))
	stays, moves := randomEntry(rnd, 1), randomEntry(rnd, 1)
	stays.Name = reference.Name{Repo: "r.example/stays", Domain: "r.example", Path: "stays", Tag: "1"}
	stays.Content.Config.Digest = digest.FromString("stays")
	c := newCatalog([]Entry{stays}, "", nil)
	must(t, l.save(c.Entries))
	line, err := stays.line()
	must(t, err)
	next, _ := c.with(moves)
	must(t, l.save(next.Entries))
	if next.images[stays.Config.Digest] != c.images[stays.Config.Digest] {
		t.Error("the image that stays was made again")
	}
	if again, err := stays.line(); err != nil || &again[0] != &line[0] {
		t.Error("its line was encoded again", err)
	}
	later := time.Unix(99, 0)
	stays.Pulled.at.Store(&later)
	must(t, l.save(next.Entries))
	entries, damage, err := l.Load()
	if err != nil || len(damage) != 0 || len(entries) != 2 {
		t.Fatal(entries, damage, err)
	}
	for i, e := range entries {
		if want := next.Entries[i]; e.Name.String() != want.Name.String() || !reflect.DeepEqual(e.Top, want.Top) ||
			!e.Pulled.Equal(want.Pulled.time()) {
			t.Errorf("entry %d: %+v, want %+v", i, e, want)
		}
	}
	must(t, l.save(nil))
	if entries, damage, err := l.Load(); err != nil || len(damage)+len(entries) != 0 {
		t.Error("no images:", entries, damage, err)
	}
	if st, err := os.Stat(string(l)); err != nil || st.Mode() != fs.FileMode(0o644) {
		t.Error(st, err)
	}
}

func TestAmbiguousID(t *testing.T) {
	twin := newCatalog([]Entry{catalogEntry("a", "aaaaaa1"), catalogEntry("b", "aaaaaa2")}, "", nil)
	if _, err := twin.Find("aaaaaa"); !errors.Is(err, reference.ErrInvalid) {
		t.Errorf("ambiguous id: %v", err)
	}
}

func catalogEntry(repo, hex string) Entry {
	id := digest.NewDigestFromEncoded(digest.SHA256, hex+strings.Repeat("0", 64-len(hex)))
	return Entry{
		Name: reference.Name{Repo: repo, Tag: "1"}, Pulled: At(time.Time{}),
		Content: &manifest.Content{Config: ocispec.Descriptor{Digest: id}, Image: &ocispec.Image{}},
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
