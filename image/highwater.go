package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/garbage"
)

// reclaimer removes images when the disk is too full.
type reclaimer struct {
	cfg     *Config
	index   *catalog.Index
	garbage *garbage.Sweeper
	root    string
	layers  LayerUses
	calls   *calls
	running sync.Mutex
}

// soon has a reclaim run next to the caller, unless one runs: one at a time is enough.
func (r *reclaimer) soon() {
	if r.cfg.HighWater == 0 || r.calls.begin() != nil {
		return
	}
	go func() {
		defer r.calls.done()
		if !r.running.TryLock() {
			return
		}
		defer r.running.Unlock()
		if err := r.reclaim(r.calls.ctx); err != nil && r.calls.ctx.Err() == nil {
			r.cfg.Log.Warn("cannot make room on the disk of images", "err", err)
		}
	}()
}

// justPulled is how long an image is kept after its pull: the client that asked for it will create
// a container next. The kubelet's own collection waits as long.
const justPulled = 2 * time.Minute

// reclaim removes images that nothing runs from, those pulled longest ago first, when the
// file system is fuller than the high water mark, until it is below the low one, but none
// that was just pulled. Pulls go on. The caller holds r.running.
func (r *reclaimer) reclaim(ctx context.Context) error {
	used, err := r.cfg.usedOf(r.root)
	if err != nil || used < r.cfg.HighWater {
		return err
	}
	if err := r.garbage.CollectAll(ctx); err != nil {
		return err
	}
	for _, img := range r.oldest() {
		used, err := r.cfg.usedOf(r.root)
		if err != nil || used < r.cfg.LowWater {
			return err
		}
		if r.cfg.now().Sub(img.Pulled) < justPulled {
			return nil // and so are all that follow
		}
		gone, err := r.garbage.Remove(ctx, catalog.Removal{Ref: img.ID.String(), May: func(img Image) bool {
			return !img.Pinned && !r.runs(img) && r.cfg.now().Sub(img.Pulled) >= justPulled
		}})
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if gone.ID == "" {
			continue
		}
		r.cfg.Log.Info("image removed: the disk is over the high water mark", "image", img.ID.String(), "names", img.RepoTags, "used", used,
			"mark", r.cfg.HighWater)
		if err := r.layers.Flush(ctx); err != nil { // or the next look is at a disk still full
			return err
		}
	}
	return nil
}

// oldest lists the images, those pulled longest ago first.
func (r *reclaimer) oldest() []Image {
	all := r.index.List()
	slices.SortStableFunc(all, func(a, b Image) int { return a.Pulled.Compare(b.Pulled) })
	return all
}

// runs says that a container may run from the image: all of its layers are in use. An
// image that others are built on looks the same, and removing it would free nothing.
func (r *reclaimer) runs(img Image) bool {
	for _, d := range img.Layers {
		if !r.layers.InUse(d) {
			return false
		}
	}
	return true
}

// usedOf is how full the store's file system is, percent.
func (c *Config) usedOf(root string) (int, error) {
	if c.used != nil {
		return c.used(), nil
	}
	return percentUsed(root)
}

// percentUsed is how full a file system is, percent.
func percentUsed(root string) (int, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", root, err)
	}
	used := st.Blocks - st.Bfree
	if used+st.Bavail == 0 {
		return 0, errors.New("statfs: a file system of no size")
	}
	return int((used*100 + used + st.Bavail - 1) / (used + st.Bavail)), nil
}
