package container

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

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
	"github.com/coracle-project/coracle/pod/userdb"
	"github.com/coracle-project/coracle/snapshot"
)

// making is a container that is being made.
type making struct {
	p     *state.PodEntry
	e     *state.ContainerEntry
	img   image.Image       // that it is made from
	saved *checkpoint.Saved // that it goes on from; nil for an ordinary container
	dir   string            // bundle

	labels  mac.Labels
	upper   string
	user    userdb.Identity
	volumes map[int]volume // by number of the mount
	watch   state.Stopwatch
}

func (cs *Containers) makeContainer(ctx context.Context, p *state.PodEntry, e *state.ContainerEntry, img image.Image) error {
	begin := time.Now()
	m := &making{p: p, e: e, img: img, dir: cs.Dirs.Containers().Of(e.ID)}
	if err := cs.recordIntent(ctx, m); err != nil {
		return err
	}
	layers, release, err := cs.layers(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	looked, err := cs.mount(ctx, m, layers, begin)
	if err != nil {
		return err
	}
	made, err := cs.specification(ctx, m)
	if err != nil {
		return err
	}
	// Hold new plugins only from here on, not while root and volumes are mounted: a waiting plugin
	// blocks the creation of all other containers and pods.
	defer cs.Notify.Hold()()
	if err := cs.Notify.Adjust(ctx, p, e, made); err != nil {
		return err
	}
	if err := ocispec.Write(m.dir, made); err != nil {
		return err
	}
	m.watch.Step("compute and write specification", looked)
	// A pod that stops from here on finds us created, and starts nothing.
	if err := p.Get().MustBeReady(); err != nil {
		return err
	}
	if err := e.Update(m.created); err != nil {
		return err
	}
	return cs.Notify.Container(ctx, plugins.ContainerCreated, e)
}

// recordIntent makes the container's directory and record, and the directory of its log.
func (cs *Containers) recordIntent(ctx context.Context, m *making) error {
	if err := cs.Dirs.Containers().Make(m.e.ID); err != nil {
		return err
	}
	if err := m.e.Update(func(*state.ContainerRecord) {}); err != nil {
		return err
	}
	if err := cs.FaultAt(ctx, faultCreateRecorded); err != nil {
		return err
	}
	if m.e.Get().LogPath == "" {
		return nil
	}
	if err := makeLogDirectory(m.p.Get().Config.LogDirectory, m.e.Get().Config.LogPath); err != nil {
		return errdefs.Errorf(errdefs.ErrInvalid, "log path: %w", err)
	}
	return nil
}

// layers are those of the container's root: its image's and, if it goes on from a checkpoint, what
// was saved, which is kept until release is called. The image becomes the saved container's.
func (cs *Containers) layers(ctx context.Context, m *making) (layers []digest.Digest, release func(), err error) {
	from := m.e.Get().Checkpoint
	if m.saved, err = cs.savedFor(ctx, m.e, &m.img, from); err != nil {
		return nil, nil, err
	}
	if m.saved == nil {
		return m.img.Layers, func() {}, nil
	}
	if m.img, err = cs.Checkpoints.Base(m.saved, m.img, from); err != nil {
		return nil, nil, err
	}
	layers, let, err := cs.Checkpoints.Layers(ctx, m.e.ID, m.saved, &m.img)
	if err != nil {
		return nil, nil, err
	}
	return layers, func() {
		undo, cancel := life.Undoing(ctx)
		defer cancel()
		if err := let(undo); err != nil {
			cs.Log.Warn("layer of a checkpoint is kept for longer than it is needed", "container", m.e.ID, "err", err)
		}
	}, nil
}

// mount mounts the root and the image volumes, and finds who the container runs as. It returns when
// it was done.
func (cs *Containers) mount(ctx context.Context, m *making, layers []digest.Digest, begin time.Time) (looked time.Time, err error) {
	pc := &m.p.Get().Config
	handler, err := cs.Handlers.Of(pc)
	if err != nil {
		return looked, err
	}
	prepared := m.watch.Step("record the intent", begin)
	if m.labels, err = cs.containerLabels(m.p, m.e); err != nil {
		return looked, err
	}
	snap, err := cs.Snapshots.Prepare(ctx, m.e.ID, snapshot.PrepareOptions{
		Layers: layers, Target: m.root(), Users: pc.Namespaces.Users, Driver: handler.Snapshotter, Label: m.labels.Mount,
	})
	if err != nil {
		return looked, fmt.Errorf("root file system: %w", err)
	}
	m.upper = snap.Upper
	mounted := m.watch.Step("mount root file system", prepared)
	if err := cs.FaultAt(ctx, faultCreateSnapshot); err != nil {
		return looked, err
	}
	if m.user, err = prepareRoot(m.root(), &m.e.Get().Config.Security, &m.img, pc.Namespaces.Users); err != nil {
		return looked, err
	}
	if m.volumes, err = cs.mountVolumes(ctx, m.e, pc.Namespaces.Users, m.labels); err != nil {
		return looked, err
	}
	return m.watch.Step("find user, mount volumes", mounted), nil
}

func (m *making) root() string { return filepath.Join(m.dir, "rootfs") }

// specification is the container's, before plugins have seen it.
func (cs *Containers) specification(ctx context.Context, m *making) (*specs.Spec, error) {
	made, err := cs.Specs.Build(ctx, &spec.Container{
		Pod: m.p, Entry: m.e, Image: &m.img, User: m.user, Root: m.root(), Volumes: sources(m.volumes), Labels: m.labels,
	})
	if err != nil {
		return nil, err
	}
	c := &m.e.Get().Config
	if m.saved != nil {
		if err := m.saved.Check(c, made); err != nil {
			return nil, err
		}
		m.saved.Apply(made)
	}
	return made, cs.Specs.InjectCDI(made, c.CDIDevices)
}

// created notes that the container is made.
func (m *making) created(r *state.ContainerRecord) {
	r.Phase, r.Upper, r.Steps = state.ContainerCreated, m.upper, m.watch.All(nil)
	if m.saved != nil {
		r.Checkpoint = m.saved.Images()
	}
	for i, v := range m.volumes {
		if r.VolumeRefs == nil {
			r.VolumeRefs = make(map[string]string, len(m.volumes))
		}
		r.VolumeRefs[r.Config.Mounts[i].ContainerPath] = v.ref
	}
	r.UID, r.GID = int64(m.user.UID), int64(m.user.GID)
	r.Groups = make([]int64, 0, len(m.user.Groups))
	for _, g := range m.user.Groups {
		r.Groups = append(r.Groups, int64(g))
	}
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
