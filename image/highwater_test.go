package image

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// InUse says what use has set.
func (l *dirLayers) InUse(d digest.Digest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inUse[d]
}

func TestReclaim(t *testing.T) {
	r := newFake(t)
	full := 0
	s := openStore(t, func(c *Config) {
		c.HighWater, c.LowWater = 85, 80
		c.used = func() int { return full }
		c.Pinned = []string{r.ref("pinned*")}
	})
	diffIDs := map[string]digest.Digest{}
	for _, name := range []string{"pinned:1", "running:1", "oldest:1", "older:1", "new:1"} {
		diffIDs[name] = r.image(name, []testLayer{gzipLayer(tarOf(name, "1"))}, nil).diffIDs[0]
		_, err := s.Pull(t.Context(), r.ref(name), PullOptions{})
		must(t, err)
	}
	s.calls.wg.Wait() // for the reclaims that the pulls have begun
	if img, err := s.Get(r.ref("pinned:1")); err != nil || !img.Pinned {
		t.Errorf("pinned: %+v, %v", img, err)
	}
	s.layers.use(diffIDs["running:1"], true)
	names := func() []string {
		all := map[string]bool{}
		for _, img := range s.List() {
			all[img.RepoTags[0]] = true
		}
		return slices.Sorted(maps.Keys(all))
	}
	// Regression: on a disk that others fill, pulls removed what they had just pulled.
	full = 99
	s.makeRoom(t)
	if len(names()) != 5 {
		t.Errorf("just pulled: %v", names())
	}
	s.Store.cfg.now = func() time.Time { return time.Now().Add(justPulled) }
	full = 84
	s.makeRoom(t)
	if len(names()) != 5 {
		t.Errorf("below the mark: %v", names())
	}
	s.Store.cfg.used = func() int { return 67 + 4*len(names()) }
	s.makeRoom(t)
	if got, want := names(), []string{r.ref("new:1"), r.ref("pinned:1"), r.ref("running:1")}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	s.Store.cfg.used = func() int { return 99 }
	s.makeRoom(t)
	if got, want := names(), []string{r.ref("pinned:1"), r.ref("running:1")}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
}

func TestUsedIsAPercentage(t *testing.T) {
	if used, err := percentUsed(t.TempDir()); err != nil || used < 0 || used > 100 {
		t.Errorf("%d, %v", used, err)
	}
}

// makeRoom has a reclaim run after those that pulls and loads have begun.
func (s *Store) makeRoom(t *testing.T) {
	t.Helper()
	s.calls.wg.Wait()
	s.reclaimer.running.Lock()
	defer s.reclaimer.running.Unlock()
	must(t, s.reclaimer.reclaim(t.Context()))
}
