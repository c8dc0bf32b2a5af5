package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/state"
)

// podDescription is pod.json of a pod's checkpoint; each container is in a directory named by its
// number in the list.
type podDescription struct {
	Version    int       `json:"version"`
	Handler    string    `json:"handler"`
	Name       string    `json:"name"`
	Namespace  string    `json:"namespace"`
	UID        string    `json:"uid"`
	Containers []string  `json:"containers"` // names
	SavedAt    time.Time `json:"savedAt"`
}

const (
	podName    = "pod.json"
	podVersion = 1
)

// Pod is Manager.CheckpointPod of package pod.
func (c *Store) Pod(ctx context.Context, podID, dir string, ids []string) error {
	e, err := state.FindReady(c.Pods, podID)
	if err != nil {
		return failure.During("checkpoint pod", podID, err)
	}
	return failure.During("checkpoint pod", e.ID, c.Life.Run(ctx, checkpointLimit, func(ctx context.Context) error {
		return c.savePod(ctx, e, dir, ids)
	}))
}

func (c *Store) savePod(ctx context.Context, p *state.PodEntry, dir string, ids []string) (err error) {
	if len(ids) == 0 {
		return errdefs.Errorf(errdefs.ErrInvalid, "no containers are named")
	}
	if !filepath.IsAbs(dir) {
		return errdefs.Errorf(errdefs.ErrInvalid, "directory %q is not an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	release, err := c.savingIn.Acquire(ctx, dir)
	if err != nil {
		return err
	}
	defer release()
	if err := c.dropUnfinishedLocked(dir); err != nil {
		return err
	}
	if err := mustBeEmpty(dir); err != nil {
		return err
	}
	config := &p.Get().Config
	sum := podDescription{
		Version: podVersion, Handler: config.RuntimeHandler, Name: config.Name, Namespace: config.Namespace, UID: config.UID,
		SavedAt: time.Now(),
	}
	into := map[*state.ContainerEntry]string{}
	for i, id := range ids {
		e, err := state.FindRunning(c.Containers, id)
		if err != nil {
			return failure.During("container", id, err)
		}
		if e.Get().PodID != p.ID {
			return errdefs.Errorf(errdefs.ErrInvalid, "container %s is in another pod", e.ID)
		}
		if into[e] != "" {
			return errdefs.Errorf(errdefs.ErrInvalid, "container %s is named twice", e.ID)
		}
		into[e] = filepath.Join(dir, fmt.Sprint(i))
		sum.Containers = append(sum.Containers, e.Get().Config.Name)
	}
	last := filepath.Join(dir, podName)
	// Each container's record names all: whichever a crash leaves, no part of the checkpoint is
	// left.
	all := append(slices.Collect(maps.Values(into)), last)
	defer func() {
		if err == nil {
			if err = forget(into, all); err == nil {
				return
			}
		}
		rerr := removeAll(all)
		if rerr == nil {
			rerr = forget(into, all)
		}
		if rerr != nil {
			err = errors.Join(err, rerr)
			c.DropLater(p.ID, all)
		}
	}()
	for e := range into {
		if err := noteSaving(e, all...); err != nil {
			return err
		}
	}
	for _, sub := range into {
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
	}
	if err := c.saveFrozen(ctx, into); err != nil {
		return err
	}
	b, err := json.MarshalIndent(sum, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(last, b, 0o600)
}

// forget is forgetSaving for all containers of a checkpoint.
func forget(of map[*state.ContainerEntry]string, paths []string) error {
	var errs []error
	for e := range of {
		errs = append(errs, forgetSaving(e, paths...))
	}
	return errors.Join(errs...)
}

// mustBeEmpty wants an existing directory with nothing in it.
func mustBeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errdefs.Errorf(errdefs.ErrInvalid, "directory %s does not exist", dir)
	case err != nil:
		return errdefs.Errorf(errdefs.ErrInvalid, "directory: %w", err)
	case len(entries) > 0:
		return errdefs.Errorf(errdefs.ErrInvalid, "directory %s is not empty", dir)
	}
	return nil
}
