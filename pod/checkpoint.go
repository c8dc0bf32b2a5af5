package pod

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
)

// checkpointLimit is how long saving takes at most where the caller has no limit.
const checkpointLimit = 2 * time.Minute

// Checkpoint saves a running container in an archive at location, an absolute path, and lets
// it go on. It is frozen meanwhile, so that memory and files fit together. On error no archive
// is left. ErrUnsupported without criu(8); timeout 0 means two minutes.
func (m *Manager) Checkpoint(ctx context.Context, id, location string, timeout time.Duration) error {
	e, err := state.FindRunning(m.containers, id)
	if err != nil {
		return errdefs.During("checkpoint container", id, err)
	}
	if timeout <= 0 {
		timeout = checkpointLimit
	}
	return errdefs.During("checkpoint container", e.ID, m.life.Run(ctx, timeout, func(ctx context.Context) error {
		return m.checkpointTo(ctx, e, location)
	}))
}

func (m *Manager) checkpointTo(ctx context.Context, e *state.ContainerEntry, location string) (err error) {
	if !filepath.IsAbs(location) || filepath.Clean(location) != location {
		return errdefs.Errorf(errdefs.ErrInvalid, "location %q is not an absolute path without . and ..", location)
	}
	if st, err := os.Lstat(location); err == nil && !st.Mode().IsRegular() {
		return errdefs.Errorf(errdefs.ErrInvalid, "location %s exists and is not a file", location)
	}
	// Next to the archive: what has room for one has room for the other.
	work := filepath.Join(filepath.Dir(location), ".coracle-checkpoint-"+table.NewID()[:16])
	if err := saving(e, work); err != nil {
		return err
	}
	defer func() {
		rerr := os.RemoveAll(work)
		if rerr == nil {
			rerr = saved(e, work)
		}
		if rerr != nil { // which is no fault of the archive's
			m.log.Warn("cannot clean up after checkpoint; trying again later", "path", work, "err", rerr)
			m.dropLater(e.ID, []string{work})
		}
	}()
	if err := os.Mkdir(work, 0o700); err != nil {
		return errdefs.Errorf(errdefs.ErrInvalid, "location: %w", err)
	}
	dir, archive := filepath.Join(work, "container"), filepath.Join(work, "archive")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := m.saveFrozen(ctx, map[*state.ContainerEntry]string{e: dir}); err != nil {
		return err
	}
	if err := pack(archive, dir); err != nil {
		return err
	}
	return os.Rename(archive, location)
}

// saveFrozen freezes the containers, saves each in its directory, and lets them go on in any
// case. Nothing else is done to them meanwhile.
func (m *Manager) saveFrozen(ctx context.Context, into map[*state.ContainerEntry]string) (err error) {
	if _, err := exec.LookPath("criu"); err != nil {
		return errdefs.Errorf(errdefs.ErrUnsupported, "checkpoints need criu(8), which is not installed: %w", err)
	}
	// In one order, so that two calls never wait for each other.
	var es []*state.ContainerEntry
	for e := range into {
		es = append(es, e)
	}
	slices.SortFunc(es, func(a, b *state.ContainerEntry) int { return strings.Compare(a.ID, b.ID) })
	for _, e := range es {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		if p := e.Get().Phase; p != state.ContainerRunning {
			return errdefs.Errorf(errdefs.ErrPrecondition, "container %s is not running (%s)", e.ID, p)
		}
	}
	var frozen []*state.ContainerEntry
	defer func() {
		undo, cancel := life.Undoing(ctx)
		defer cancel()
		for _, e := range frozen {
			err = errors.Join(err, m.thaw(undo, e))
		}
	}()
	for _, e := range es {
		// Thawed even if the answer was lost.
		frozen = append(frozen, e)
		if err := e.Update(func(r *state.ContainerRecord) { r.Frozen = true }); err != nil {
			return err
		}
		if err := m.Shim.Pause(ctx, e.Get().PodID, e.ID); err != nil {
			return err
		}
	}
	var tasks errgroup.Group
	for _, e := range es {
		tasks.Go(func() error { return errdefs.During("container", e.ID, m.save(ctx, e, into[e])) })
	}
	return tasks.Wait()
}

// thaw lets a container go on that was frozen to be saved, by this daemon or one that was killed.
func (m *Manager) thaw(ctx context.Context, e *state.ContainerEntry) error {
	if err := m.Shim.Resume(ctx, e.Get().PodID, e.ID); err != nil {
		return err
	}
	return e.Update(func(r *state.ContainerRecord) { r.Frozen = false })
}

// save writes a frozen container into an empty directory.
func (m *Manager) save(ctx context.Context, e *state.ContainerEntry, dir string) (err error) {
	rec := e.Get()
	if err := m.Shim.Checkpoint(ctx, rec.PodID, e.ID, filepath.Join(dir, savedImagesName)); err != nil {
		return err
	}
	if err := m.faultAt(ctx, faultCheckpointImages); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, savedDiffName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(m.Snapshots.Changes(ctx, e.ID, f), f.Close()); err != nil {
		return err
	}
	return writeSaved(dir, rec, m.dirs.Containers().Of(e.ID))
}

// pack makes an archive of a directory.
func pack(archive, dir string) (err error) {
	f, err := os.OpenFile(archive, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return fmt.Errorf("pack the checkpoint: %w", err)
	}
	return w.Close()
}

// savedPod is pod.json of a pod's checkpoint; each container is in a directory named by its
// number in the list.
type savedPod struct {
	Version    int       `json:"version"`
	Handler    string    `json:"handler"`
	Name       string    `json:"name"`
	Namespace  string    `json:"namespace"`
	UID        string    `json:"uid"`
	Containers []string  `json:"containers"` // names
	SavedAt    time.Time `json:"savedAt"`
}

const (
	savedPodName    = "pod.json"
	savedPodVersion = 1
)

// CheckpointPod saves containers of a ready pod, which must all run, in an existing empty
// directory: all are frozen before the first is saved, and go on when the last one is. On error the
// directory is empty again. What a daemon that was killed left of another one there is removed
// first.
func (m *Manager) CheckpointPod(ctx context.Context, podID, dir string, ids []string) error {
	e, err := state.FindReady(m.pods, podID)
	if err != nil {
		return errdefs.During("checkpoint pod", podID, err)
	}
	return errdefs.During("checkpoint pod", e.ID, m.life.Run(ctx, checkpointLimit, func(ctx context.Context) error {
		return m.checkpointPod(ctx, e, dir, ids)
	}))
}

func (m *Manager) checkpointPod(ctx context.Context, p *state.PodEntry, dir string, ids []string) (err error) {
	if len(ids) == 0 {
		return errdefs.Errorf(errdefs.ErrInvalid, "no containers are named")
	}
	if !filepath.IsAbs(dir) {
		return errdefs.Errorf(errdefs.ErrInvalid, "directory %q is not an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	release, err := m.savingIn.Acquire(ctx, dir)
	if err != nil {
		return err
	}
	defer release()
	if err := m.dropUnfinishedLocked(dir); err != nil {
		return err
	}
	if err := mustBeEmpty(dir); err != nil {
		return err
	}
	c := &p.Get().Config
	sum := savedPod{
		Version: savedPodVersion, Handler: c.RuntimeHandler, Name: c.Name, Namespace: c.Namespace, UID: c.UID, SavedAt: time.Now(),
	}
	into := map[*state.ContainerEntry]string{}
	for i, id := range ids {
		e, err := state.FindRunning(m.containers, id)
		if err != nil {
			return errdefs.During("container", id, err)
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
	last := filepath.Join(dir, savedPodName)
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
			m.dropLater(p.ID, all)
		}
	}()
	for e := range into {
		if err := saving(e, all...); err != nil {
			return err
		}
	}
	for _, sub := range into {
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
	}
	if err := m.saveFrozen(ctx, into); err != nil {
		return err
	}
	b, err := json.MarshalIndent(sum, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(last, b, 0o600)
}

// forget is saved for all containers of a checkpoint.
func forget(of map[*state.ContainerEntry]string, paths []string) error {
	var errs []error
	for e := range of {
		errs = append(errs, saved(e, paths...))
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
