package image

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// countSyncs counts the syncs of a store's disks from now on.
func (s *testStore) countSyncs() *int {
	n := 0
	work := s.blobs.Syncs.Work
	s.blobs.Syncs.Work = func(all []struct{}) error {
		n++
		return work(all)
	}
	return &n
}

// age gives all files of a store and its layers an old time, and returns a function that lists
// those that were written since, or in which something was.
func (s *testStore) age(t *testing.T) (written func() []string) {
	t.Helper()
	old := time.Unix(1_000_000_000, 0)
	dir := filepath.Dir(s.cfg.Root)
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		must(t, err)
		return os.Chtimes(path, old, old)
	}))
	return func() (since []string) {
		must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			must(t, err)
			info, err := e.Info()
			must(t, err)
			if !info.ModTime().Equal(old) {
				since = append(since, path)
			}
			return nil
		}))
		return since
	}
}

// A pull of what is there costs no sync of the disk, which everybody writes to, and no write.
func TestWarmPullWritesNothing(t *testing.T) {
	for name, keep := range map[string]bool{"blobs kept": true, "blobs discarded": false} {
		t.Run(name, func(t *testing.T) {
			r, s := newFake(t), openStore(t, func(c *Config) { c.KeepBlobs = keep })
			p := r.image("app:1", threeLayers(), nil)
			index := r.index("app:multi", ocispec.MediaTypeImageIndex, r.of("app", p.manifest, "linux", runtime.GOARCH, ""))
			refs := []string{r.ref("app:1"), r.ref("app:multi"), r.ref("app@" + index.String())}
			for _, ref := range refs {
				_, err := s.Pull(t.Context(), ref, PullOptions{})
				must(t, err)
			}
			for _, step := range []string{"pulled", "reopened"} {
				syncs, written, asked := s.countSyncs(), s.age(t), r.asked("/blobs/")+r.asked("/manifests/sha256:"+p.manifest.Encoded())
				for _, ref := range refs {
					before, err := s.Get(ref)
					must(t, err)
					var done, total int64
					complete := 0
					img, err := s.Pull(t.Context(), ref, PullOptions{
						Progress: func(d, n int64) {
							done, total = d, n
							if s.index.Busy() {
								t.Error("a callback may delay all writers")
							}
						},
						Layer: func(l LayerProgress) {
							if l.Complete {
								complete++
							}
						},
					})
					must(t, err)
					if now, err := s.Get(ref); err != nil || !img.Pulled.After(before.Pulled) || !now.Pulled.Equal(img.Pulled) {
						t.Errorf("%s, %s: pulled at %s, now at %s, found as of %s, %v", step, ref, before.Pulled, img.Pulled, now.Pulled, err)
					}
					if done != img.Size || total != img.Size || complete != 3 {
						t.Errorf("%s, %s: progress %d of %d, want %d; %d layers", step, ref, done, total, img.Size, complete)
					}
				}
				if *syncs != 0 {
					t.Errorf("%s: %d syncs", step, *syncs)
				}
				if w := written(); len(w) != 0 {
					t.Errorf("%s: written to %q", step, w)
				}
				if n := r.asked("/blobs/") + r.asked("/manifests/sha256:"+p.manifest.Encoded()); n != asked {
					t.Errorf("%s: %d documents were fetched that are there", step, n-asked)
				}
				last, err := s.Get(refs[0])
				must(t, err)
				s.reopen(t)
				if img, err := s.Get(refs[0]); err != nil || !img.Pulled.Equal(last.Pulled) {
					t.Errorf("%s, closed and opened: pulled at %s, want %s, %v", step, img.Pulled, last.Pulled, err)
				}
			}
		})
	}
}

// A pull is not warm if something is missing, not as it should be, or not on the disk yet.
func TestPullMendsWhatIsThere(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *fakeRegistry, s *testStore, p pushed){
		"document missing": func(t *testing.T, _ *fakeRegistry, s *testStore, p pushed) {
			must(t, os.Remove(s.blobs.Path(p.config)))
		},
		"document damaged": func(t *testing.T, _ *fakeRegistry, s *testStore, p pushed) {
			must(t, os.WriteFile(s.blobs.Path(p.manifest), []byte("rotten"), 0o644))
		},
		"blob missing": func(t *testing.T, _ *fakeRegistry, s *testStore, p pushed) {
			must(t, os.Remove(s.blobs.Path(p.layers[1])))
		},
		"layer missing": func(t *testing.T, _ *fakeRegistry, s *testStore, p pushed) {
			must(t, os.RemoveAll(s.layers.path(p.diffIDs[2])))
		},
		"not synced": func(_ *testing.T, _ *fakeRegistry, s *testStore, _ pushed) {
			s.blobs.Naming()()
		},
		"tag moved": func(_ *testing.T, r *fakeRegistry, _ *testStore, _ pushed) {
			r.image("app:1", threeLayers(), func(_ *ocispec.Manifest, c *ocispec.Image) { c.Config.User = "other" })
		},
		"name removed": func(t *testing.T, _ *fakeRegistry, s *testStore, _ pushed) {
			_, err := s.Untag(t.Context(), s.List()[0].RepoTags[0])
			must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := newFake(t), openStore(t, nil)
			p := r.image("app:1", threeLayers(), nil)
			_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			change(t, r, s, p)
			syncs := s.countSyncs()
			img, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			if *syncs == 0 {
				t.Error("no sync")
			}
			s.reopen(t)
			found, err := s.Get(r.ref("app:1"))
			if err != nil || found.ID != img.ID {
				t.Errorf("opened again: %s, %v; pulled %s", found.ID, err, img.ID)
			}
			for _, d := range append([]digest.Digest{img.Manifest, img.ID}, p.layers...) {
				if _, err := os.Stat(s.blobs.Path(d)); err != nil {
					t.Error(err)
				}
			}
			syncs = s.countSyncs()
			_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			if *syncs != 0 {
				t.Errorf("the next pull: %d syncs", *syncs)
			}
		})
	}
}

// A document that is there as it should be is not written again: until the next sync, those who
// have it already would lose it with the power.
func TestDocumentsStayAsTheyAre(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("app:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	before, err := os.Stat(s.blobs.Path(p.config))
	must(t, err)
	r.index("app:2", ocispec.MediaTypeImageIndex, r.of("app", p.manifest, "linux", runtime.GOARCH, ""))
	_, err = s.Pull(t.Context(), r.ref("app:2"), PullOptions{})
	must(t, err)
	after, err := os.Stat(s.blobs.Path(p.config))
	must(t, err)
	if !os.SameFile(before, after) {
		t.Error("written again")
	}
}
