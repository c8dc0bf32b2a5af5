// Package checkpoint saves running containers and pods with criu(8), and reads what was saved.
package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/keylock"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/snapshot"
)

// Shim freezes and saves containers.
type Shim interface {
	Checkpoint(ctx context.Context, podID, id, dir string) error
	Pause(ctx context.Context, podID, id string) error
	Resume(ctx context.Context, podID, id string) error
}

// Images finds images that were pulled.
type Images interface {
	Get(ref string) (image.Image, error)
}

// Snapshots reads and makes root file systems.
type Snapshots interface {
	Prepare(ctx context.Context, id string, o snapshot.PrepareOptions) (snapshot.Snapshot, error)
	Remove(ctx context.Context, id string) error
	// Changes writes what a container wrote as the archive of a layer.
	Changes(ctx context.Context, id string, to io.Writer) error
	// AddLayer unpacks the archive of a layer, and keeps it until release is called, by when a
	// snapshot should have it; id is that of the container which it is for.
	AddLayer(ctx context.Context, id string, archive io.ReadSeeker) (d digest.Digest, release func(context.Context) error, err error)
}

// Config is what a Store needs. All fields must be set, but for the last two.
type Config struct {
	Pods       *state.PodTable
	Containers *state.ContainerTable
	Dirs       state.Layout
	Shim       Shim
	Images     Images
	Snapshots  Snapshots
	Life       *life.Life
	Clean      *life.Cleaner
	Log        *slog.Logger
	FaultAt    func(ctx context.Context, point fault.Point) error

	// Restore lets containers go on from checkpoints: see restore.go.
	Restore bool
	// RestoreBases are the images that a checkpoint image may name as the one that the saved
	// container was made from: full names, or a prefix followed by *.
	RestoreBases []string
}

// Store makes checkpoints, and reads those that containers go on from.
type Store struct {
	Config
	savingIn   keylock.Lock // directories, for one checkpoint of a pod at a time
	unfinished unfinished
}

// New makes a Store.
func New(c Config) *Store { return &Store{Config: c} }

// checkpointLimit is how long saving takes at most where the caller has no limit.
const checkpointLimit = 2 * time.Minute

// Container is Manager.Checkpoint of package pod.
func (c *Store) Container(ctx context.Context, id, location string, timeout time.Duration) error {
	e, err := state.FindRunning(c.Containers, id)
	if err != nil {
		return failure.During("checkpoint container", id, err)
	}
	if timeout <= 0 {
		timeout = checkpointLimit
	}
	return failure.During("checkpoint container", e.ID, c.Life.Run(ctx, timeout, func(ctx context.Context) error {
		return c.archive(ctx, e, location)
	}))
}

func (c *Store) archive(ctx context.Context, e *state.ContainerEntry, location string) (err error) {
	if !filepath.IsAbs(location) || filepath.Clean(location) != location {
		return errdefs.Errorf(errdefs.ErrInvalid, "location %q is not an absolute path without . and ..", location)
	}
	if st, err := os.Lstat(location); err == nil && !st.Mode().IsRegular() {
		return errdefs.Errorf(errdefs.ErrInvalid, "location %s exists and is not a file", location)
	}
	// Next to the archive: what has room for one has room for the other.
	work := filepath.Join(filepath.Dir(location), ".coracle-checkpoint-"+table.NewID()[:16])
	if err := noteSaving(e, work); err != nil {
		return err
	}
	defer func() {
		rerr := os.RemoveAll(work)
		if rerr == nil {
			rerr = forgetSaving(e, work)
		}
		if rerr != nil { // which is no fault of the archive's
			c.Log.Warn("cannot clean up after checkpoint; trying again later", "path", work, "err", rerr)
			c.DropLater(e.ID, []string{work})
		}
	}()
	if err := os.Mkdir(work, 0o700); err != nil {
		return errdefs.Errorf(errdefs.ErrInvalid, "location: %w", err)
	}
	dir, archive := filepath.Join(work, "container"), filepath.Join(work, "archive")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := c.saveFrozen(ctx, map[*state.ContainerEntry]string{e: dir}); err != nil {
		return err
	}
	if err := pack(archive, dir); err != nil {
		return err
	}
	return os.Rename(archive, location)
}

// saveFrozen freezes the containers, saves each in its directory, and lets them go on in any
// case. Nothing else is done to them meanwhile.
func (c *Store) saveFrozen(ctx context.Context, into map[*state.ContainerEntry]string) (err error) {
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
			if terr := c.Thaw(undo, e); terr != nil {
				err = errors.Join(err, terr)
				c.Clean.Queue("frozen container", e.ID, func(ctx context.Context) error { return c.thawLater(ctx, e) })
			}
		}
	}()
	for _, e := range es {
		// Thawed even if the answer was lost.
		frozen = append(frozen, e)
		if err := e.Update(func(r *state.ContainerRecord) { r.Frozen = true }); err != nil {
			return err
		}
		if err := c.Shim.Pause(ctx, e.Get().PodID, e.ID); err != nil {
			return err
		}
	}
	var tasks errgroup.Group
	for _, e := range es {
		tasks.Go(func() error { return failure.During("container", e.ID, c.save(ctx, e, into[e])) })
	}
	return tasks.Wait()
}

// Thaw lets a container go on that was frozen to be saved, by this daemon or one that was killed.
func (c *Store) Thaw(ctx context.Context, e *state.ContainerEntry) error {
	if err := c.Shim.Resume(ctx, e.Get().PodID, e.ID); err != nil {
		return err
	}
	return e.Update(func(r *state.ContainerRecord) { r.Frozen = false })
}

// thawLater is Thaw in the background, of a container that may have ended or be stopped meanwhile.
func (c *Store) thawLater(ctx context.Context, e *state.ContainerEntry) error {
	if err := e.Turn.Take(ctx); err != nil {
		return err
	}
	defer e.Turn.Give()
	if r := e.Get(); !r.Frozen || r.Phase != state.ContainerRunning {
		return nil
	}
	return c.Thaw(ctx, e)
}

// save writes a frozen container into an empty directory.
func (c *Store) save(ctx context.Context, e *state.ContainerEntry, dir string) (err error) {
	rec := e.Get()
	if err := c.Shim.Checkpoint(ctx, rec.PodID, e.ID, filepath.Join(dir, ImagesName)); err != nil {
		return err
	}
	if err := c.FaultAt(ctx, faultImages); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, DiffName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(c.Snapshots.Changes(ctx, e.ID, f), f.Close()); err != nil {
		return err
	}
	return writeSaved(dir, rec, c.Dirs.Containers().Of(e.ID))
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
