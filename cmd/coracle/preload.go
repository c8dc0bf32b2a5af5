package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/coracle-project/coracle/cmd/coracle/image"
	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/privatedir"
)

// preloaded is what up remembers of archives of images.
type preloaded struct {
	Dir      string                   `json:"dir"`
	Archives map[string]image.Archive `json:"archives"`
}

func (p place) preloaded() string { return filepath.Join(p.kubeRoot(), "preloaded.json") }

// lastPreloaded returns what the last up has loaded, nothing if it is not known: everything is
// loaded again then.
func lastPreloaded(p place) (last preloaded) {
	data, err := os.ReadFile(p.preloaded())
	if err != nil || json.Unmarshal(data, &last) != nil {
		return preloaded{}
	}
	return last
}

// archives says whether there may be archives of images to load: the cluster starts after them.
func (u *upRun) archives() bool {
	if u.o.Images == "" || u.o.Images == nothing {
		return false
	}
	entries, err := os.ReadDir(u.o.Images)
	return err == nil && len(entries) > 0
}

// preload loads the archives of images that are new or changed. One that cannot be loaded is told,
// also by status, and does not keep the node from starting: its pods may find their images
// elsewhere. Loading has limits of its own, so its time does not count for that of --timeout.
func (u *upRun) preload(ctx context.Context, steps *steps) error {
	if !u.archives() {
		return nil
	}
	last := lastPreloaded(u.place)
	if last.Dir != u.o.Images {
		last.Archives = nil
	}
	defer u.limit.pause()()
	now, err := image.Preload(ctx, u.Socket(), u.o.Images, last.Archives, steps.out, steps.done)
	if err != nil {
		err = fmt.Errorf("up: --images %s: %w", u.o.Images, err)
	}
	if now == nil && err != nil {
		return err
	}
	// What was loaded before an error is not loaded again.
	return errors.Join(err, u.rememberPreloaded(now))
}

func (u *upRun) rememberPreloaded(now map[string]image.Archive) error {
	data, err := json.MarshalIndent(preloaded{u.o.Images, now}, "", "  ")
	if err != nil {
		return err
	}
	if err := privatedir.Make(u.kubeRoot()); err != nil {
		return err
	}
	return atomicfile.Write(u.preloaded(), append(data, '\n'), 0o600)
}

// preloadHealth has a line for each archive that could not be loaded and still exists.
func preloadHealth(p place) (all []health) {
	last := lastPreloaded(p)
	for _, name := range slices.Sorted(maps.Keys(last.Archives)) {
		path := filepath.Join(last.Dir, name)
		if a := last.Archives[name]; a.Error != "" {
			if _, err := os.Lstat(path); err == nil {
				all = append(all, line("images", "", "", fmt.Errorf("%s was not loaded: %s; 'coracle up%s' loads a corrected one", path, a.Error, p.flags())))
			}
		}
	}
	return all
}
