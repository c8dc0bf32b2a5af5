package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/safepath"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
)

// Create is Manager.Create of package pod.
func (cs *Containers) Create(ctx context.Context, podID string, c podconfig.Container) (id string, err error) {
	if err := c.Validate(); err != nil {
		return "", failure.During("create container", c.Name, err)
	}
	p, err := cs.Pods.Find(podID)
	if err != nil {
		return "", failure.During("create container", c.Name, err)
	}
	return cs.making.Do(ctx, c.Identity(p.ID), func(ctx context.Context) (id string, err error) {
		err = cs.Life.Run(ctx, createLimit, func(ctx context.Context) error {
			id, err = cs.create(ctx, p, c, "")
			return failure.During("create container", c.Name, err)
		})
		return id, err
	})
}

// create makes a container; from is a directory with a saved one that it goes on from, or
// empty.
func (cs *Containers) create(ctx context.Context, p *state.PodEntry, c podconfig.Container, from string) (string, error) {
	if err := cs.AwaitRecovery(ctx); err != nil {
		return "", err
	}
	if err := p.Get().MustBeReady(); err != nil {
		return "", err
	}
	cs.Starting()
	img, err := cs.Images.Get(c.Image)
	if errors.Is(err, image.ErrNotFound) {
		return "", errdefs.Errorf(errdefs.ErrNotFound, "image %q is not on this node; pull it first", c.Image)
	}
	if err != nil {
		return "", err
	}
	id := table.NewID()
	rec := state.ContainerRecord{
		ID: id, PodID: p.ID, Phase: state.ContainerMaking, Config: c, CreatedAt: cs.Created.Next(),
		ImageID: img.ID.String(), LogPath: logPath(&p.Get().Config, &c),
		Checkpoint: from,
	}
	if len(img.RepoDigests) > 0 {
		rec.ImageRef = img.RepoDigests[0]
	}
	signal := c.StopSignal
	if signal == "" {
		signal = img.Config.StopSignal
	}
	if signal == "" {
		signal = "SIGTERM"
	}
	sig, err := podconfig.ParseSignal(signal)
	if err != nil {
		return "", err
	}
	rec.StopSignal = int(sig)
	e := table.NewEntry(id, cs.Dirs.Containers(), cs.Reserve, rec, cs.Events.ContainerChanged)
	if holder, ok := cs.Containers.Add(c.Identity(p.ID), e); !ok {
		if cs.repeated(holder, &c) {
			return holder, nil
		}
		return "", errdefs.Errorf(errdefs.ErrExists, "container %s of the pod has this name and attempt; remove it or raise the attempt", holder)
	}
	if err := e.Turn.Take(ctx); err != nil {
		return "", err // cannot happen: no one else knows the id
	}
	defer e.Turn.Give()
	if err = cs.makeContainer(ctx, p, e, img); err == nil {
		return id, nil
	}
	undo, cancel := life.Undoing(ctx)
	defer cancel()
	if derr := cs.dropContainer(undo, e); derr != nil {
		cs.Log.Error("half-made container not cleaned up, trying again in the background", "container", id, "err", derr)
		cs.queueDrop(e)
	}
	return "", cs.Reserve.Explain(err)
}

// logPath is where the container's log goes; "" if the caller wants none.
func logPath(p *podconfig.Pod, c *podconfig.Container) string {
	if p.LogDirectory == "" || c.LogPath == "" {
		return ""
	}
	return filepath.Join(p.LogDirectory, c.LogPath)
}

// makeLogDirectory makes the directory of a log named in the pod's log directory. No link in there
// leads out of it: volumes may show log directories to containers.
func makeLogDirectory(dir, name string) error {
	if name = filepath.Clean(name); name == "." {
		return fmt.Errorf("%s is a directory", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := safepath.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	in, _, err := root.Strict().EnsureDir(filepath.Dir(name), 0o755)
	if err != nil {
		return err
	}
	defer in.Close()
	if st, err := in.Lstat(filepath.Base(name)); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("%s in %s is a directory", name, dir)
	}
	return nil
}

func (cs *Containers) repeated(holder string, c *podconfig.Container) bool {
	e := cs.Containers.Exact(holder)
	if e == nil {
		return false
	}
	r := e.Get()
	return r.Phase == state.ContainerCreated && podconfig.Same(&r.Config, c)
}

// CreateFrom is Create of a container that goes on from a checkpoint.
func (cs *Containers) CreateFrom(ctx context.Context, podID string, c podconfig.Container, dir string) (id string, err error) {
	p, err := cs.Pods.Find(podID)
	if err != nil {
		return "", err
	}
	if err := c.Validate(); err != nil {
		return "", failure.During("create container", c.Name, err)
	}
	err = cs.Life.Run(ctx, createLimit, func(ctx context.Context) error {
		id, err = cs.create(ctx, p, c, dir)
		return failure.During("create container", c.Name, err)
	})
	return id, err
}
