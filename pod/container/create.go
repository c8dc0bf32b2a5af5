package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/safepath"
	"github.com/coracle-project/coracle/pod/checkpoint"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/idmaps"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/spec"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/pod/userdb"
	"github.com/coracle-project/coracle/snapshot"
)

// Create is Manager.Create of package pod.
func (cs *Containers) Create(ctx context.Context, podID string, c podconfig.Container) (id string, err error) {
	if err := c.Validate(); err != nil {
		return "", errdefs.During("create container", c.Name, err)
	}
	p, err := cs.Pods.Find(podID)
	if err != nil {
		return "", errdefs.During("create container", c.Name, err)
	}
	return cs.making.Do(ctx, c.Identity(p.ID), func(ctx context.Context) (id string, err error) {
		err = cs.Life.Run(ctx, createLimit, func(ctx context.Context) error {
			id, err = cs.create(ctx, p, c, "")
			return errdefs.During("create container", c.Name, err)
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
		cs.Log.Error("half-made container not cleaned up, trying again in the background", "id", id, "err", derr)
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

func (cs *Containers) makeContainer(ctx context.Context, p *state.PodEntry, e *state.ContainerEntry, img image.Image) error {
	begin := time.Now()
	var watch state.Stopwatch
	dir := cs.Dirs.Containers().Of(e.ID)
	if err := cs.Dirs.Containers().Make(e.ID); err != nil {
		return err
	}
	if err := e.Update(func(*state.ContainerRecord) {}); err != nil {
		return err
	}
	if err := cs.FaultAt(ctx, faultCreateRecorded); err != nil {
		return err
	}
	if e.Get().LogPath != "" {
		if err := makeLogDirectory(p.Get().Config.LogDirectory, e.Get().Config.LogPath); err != nil {
			return errdefs.Errorf(errdefs.ErrInvalid, "log path: %w", err)
		}
	}
	from := e.Get().Checkpoint
	saved, err := cs.savedFor(ctx, e, &img, from)
	if err != nil {
		return err
	}
	layers := img.Layers
	if saved != nil {
		if img, err = cs.Checkpoints.Base(saved, img, from); err != nil {
			return err
		}
		var release func(context.Context) error
		if layers, release, err = cs.Checkpoints.Layers(ctx, e.ID, saved, &img); err != nil {
			return err
		}
		defer func() {
			undo, cancel := life.Undoing(ctx)
			defer cancel()
			if err := release(undo); err != nil {
				cs.Log.Warn("layer of a checkpoint is kept for longer than it is needed", "id", e.ID, "err", err)
			}
		}()
	}
	handler, err := cs.Handlers.Of(&p.Get().Config)
	if err != nil {
		return err
	}
	prepared := watch.Step("record the intent", begin)
	labels, err := cs.containerLabels(p, e)
	if err != nil {
		return err
	}
	root := filepath.Join(dir, "rootfs")
	snap, err := cs.Snapshots.Prepare(ctx, e.ID, snapshot.PrepareOptions{
		Layers: layers, Target: root, Users: p.Get().Config.Namespaces.Users, Driver: handler.Snapshotter,
		Label: labels.Mount,
	})
	if err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	mounted := watch.Step("mount root file system", prepared)
	if err := cs.FaultAt(ctx, faultCreateSnapshot); err != nil {
		return err
	}
	user, err := prepareRoot(root, &e.Get().Config.Security, &img, p.Get().Config.Namespaces.Users)
	if err != nil {
		return err
	}
	volumes, err := cs.mountVolumes(ctx, e, p.Get().Config.Namespaces.Users, labels)
	if err != nil {
		return err
	}
	looked := watch.Step("find user, mount volumes", mounted)
	made, err := cs.Specs.Build(ctx, &spec.Container{
		Pod: p, Entry: e, Image: &img, User: user, Root: root, Volumes: sources(volumes), Labels: labels,
	})
	if err != nil {
		return err
	}
	if saved != nil {
		if err := saved.Check(&e.Get().Config, made); err != nil {
			return err
		}
		saved.Apply(made)
	}
	if err := cs.Specs.InjectCDI(made, e.Get().Config.CDIDevices); err != nil {
		return err
	}
	// Hold new plugins only from here on, not while root and volumes are mounted: a waiting plugin
	// blocks the creation of all other containers and pods.
	defer cs.Notify.Hold()()
	if err := cs.Notify.Adjust(ctx, p, e, made); err != nil {
		return err
	}
	if err := ocispec.Write(dir, made); err != nil {
		return err
	}
	watch.Step("compute and write specification", looked)
	// A pod that stops from here on waits for our turn before it counts its containers.
	if err := p.Get().MustBeReady(); err != nil {
		return err
	}
	err = e.Update(func(r *state.ContainerRecord) {
		r.Phase, r.Upper, r.Steps = state.ContainerCreated, snap.Upper, watch.All(nil)
		if saved != nil {
			r.Checkpoint = saved.Images()
		}
		for i, v := range volumes {
			if r.VolumeRefs == nil {
				r.VolumeRefs = make(map[string]string, len(volumes))
			}
			r.VolumeRefs[r.Config.Mounts[i].ContainerPath] = v.ref
		}
		r.UID, r.GID = int64(user.UID), int64(user.GID)
		r.Groups = make([]int64, 0, len(user.Groups))
		for _, g := range user.Groups {
			r.Groups = append(r.Groups, int64(g))
		}
	})
	if err != nil {
		return err
	}
	return cs.Notify.Container(ctx, plugins.ContainerCreated, e)
}

// savedFor is the checkpoint that a container goes on from: the caller's, or the one that
// its image is; nil for an ordinary container.
func (cs *Containers) savedFor(ctx context.Context, e *state.ContainerEntry, img *image.Image, from string) (*checkpoint.Saved, error) {
	if from == "" {
		return cs.Checkpoints.In(ctx, e, img)
	}
	saved, err := checkpoint.Open(from)
	if err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %w", err)
	}
	return saved, nil
}

// containerLabels are a container's labels. Those that are not the pod's are in its record.
func (cs *Containers) containerLabels(p *state.PodEntry, e *state.ContainerEntry) (mac.Labels, error) {
	l, held, err := cs.SELinux.Container(p.Get().Labels, &e.Get().Config.Security)
	if err != nil || !held {
		return l, err
	}
	if err := e.Update(func(r *state.ContainerRecord) { r.Labels = l }); err != nil {
		cs.SELinux.Release(l)
		return l, err
	}
	return l, nil
}

// prepareRoot does what the image's configuration asks of its root: it makes the
// volumes' directories, which are part of the writable layer, and finds who the container
// runs as, from the caller's wish, else the image's.
func prepareRoot(root string, s *podconfig.Security, img *image.Image, users podconfig.IDMaps) (userdb.Identity, error) {
	r, err := safepath.Open(root)
	if err != nil {
		return userdb.Identity{}, err
	}
	defer r.Close()
	err = idmaps.AsRoot(users, func() error {
		for volume := range img.Config.Volumes {
			if err := r.MkdirAll(volume, 0o755); err != nil {
				return errdefs.Errorf(errdefs.ErrInvalid, "volume %q of the image: %w", volume, err)
			}
		}
		return nil
	})
	if err != nil {
		return userdb.Identity{}, err
	}
	want := userdb.Request{
		User: s.User.Name, UID: s.User.UID, GID: s.User.GID,
		Groups: s.SupplementalGroups, Strict: s.SupplementalGroupsStrict,
	}
	if want.User == "" && want.UID == nil {
		want.User = img.Config.User
	}
	id, err := userdb.Resolve(r, want)
	if err != nil {
		return userdb.Identity{}, errdefs.Errorf(errdefs.ErrInvalid, "user: %w", err)
	}
	return id, nil
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
		return "", errdefs.During("create container", c.Name, err)
	}
	err = cs.Life.Run(ctx, createLimit, func(ctx context.Context) error {
		id, err = cs.create(ctx, p, c, dir)
		return errdefs.During("create container", c.Name, err)
	})
	return id, err
}
