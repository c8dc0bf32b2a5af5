package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pinnedNames are references of images that no collection removes: full names with a tag
// or digest, or the beginning of some with * after it.
type pinnedNames []string

func (p pinnedNames) has(name string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return pattern == name
	})
}

// reclaimSoon has a reclaim run next to the caller.
func (s *Store) reclaimSoon() {
	if s.cfg.HighWater == 0 || s.begin() != nil {
		return
	}
	go func() {
		defer s.wg.Done()
		if err := s.reclaim(s.ctx); err != nil && s.ctx.Err() == nil {
			s.cfg.Log.Warn("cannot make room on the disk of images", "error", err)
		}
	}()
}

// justPulled is how long an image is let be: whoever has had it pulled makes a container of
// it next. The kubelet's own collection waits as long.
const justPulled = 2 * time.Minute

// reclaim removes images that nothing runs from, those pulled longest ago first, when the
// file system is fuller than the high water mark, until it is below the low one, but none
// that was just pulled. One reclaim at a time is enough; pulls go on.
func (s *Store) reclaim(ctx context.Context) error {
	if s.cfg.HighWater == 0 || !s.reclaiming.TryLock() {
		return nil
	}
	defer s.reclaiming.Unlock()
	used, err := s.cfg.usedOf(s.blobs.layout)
	if err != nil || used < s.cfg.HighWater {
		return err
	}
	if err := s.GC(ctx); err != nil {
		return err
	}
	for _, img := range s.oldest() {
		used, err := s.cfg.usedOf(s.blobs.layout)
		if err != nil || used < s.cfg.LowWater {
			return err
		}
		if s.cfg.now().Sub(img.Pulled) < justPulled {
			return nil // and so are all that follow
		}
		gone, err := s.RemoveIf(ctx, img.ID, func(img Image) bool {
			return !img.Pinned && !s.runs(img) && s.cfg.now().Sub(img.Pulled) >= justPulled
		})
		if err != nil {
			return err
		}
		if gone.ID == "" {
			continue
		}
		s.cfg.Log.Info("image removed: the disk is over the high water mark", "image", img.ID.String(), "names", img.RepoTags, "used", used,
			"mark", s.cfg.HighWater)
		if err := s.cfg.Layers.Flush(ctx); err != nil { // or the next look is at a disk still full
			return err
		}
	}
	return nil
}

// oldest lists the images, those pulled longest ago first.
func (s *Store) oldest() []Image {
	all := s.List()
	slices.SortStableFunc(all, func(a, b Image) int { return a.Pulled.Compare(b.Pulled) })
	return all
}

// runs says that a container may run from the image: all of its layers are in use. An
// image that others are built on looks the same, and removing it would free nothing.
func (s *Store) runs(img Image) bool {
	for _, d := range img.Layers {
		if !s.cfg.Layers.InUse(d) {
			return false
		}
	}
	return true
}

// usedOf is how full the store's file system is, percent.
func (c *Config) usedOf(l layout) (int, error) {
	if c.used != nil {
		return c.used(), nil
	}
	return l.used()
}

// used is how full the file system is, percent.
func (l layout) used() (int, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(l.root, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", l.root, err)
	}
	used := st.Blocks - st.Bfree
	if used+st.Bavail == 0 {
		return 0, errors.New("statfs: a file system of no size")
	}
	return int((used*100 + used + st.Bavail - 1) / (used + st.Bavail)), nil
}
