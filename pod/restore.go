package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/safepath"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/snapshot"
)

// Whoever wrote a checkpoint decides what the restored processes have in memory, which files they
// have open, and which rights they have: that the checkpoint says of these what the container's
// configuration allows is checked (savedspec.go), that CRIU's images say the same is not. Restoring
// is therefore off unless the operator says otherwise.

// Restored is a container of RestorePod.
type Restored struct{ Name, ID string }

// RestorePod makes a pod, and of each container in a directory that CheckpointPod wrote one
// with a configuration of that name, which goes on from there when it is started. The
// directory must stay until then. On error nothing is left. ErrPrecondition unless restoring
// is on.
func (m *Manager) RestorePod(ctx context.Context, dir string, c podconfig.Pod,
	containers []podconfig.Container,
) (podID string, out []Restored, err error) {
	saved, err := m.openSavedPod(dir, &c, containers)
	if err != nil {
		return "", nil, errdefs.During("restore pod", c.String(), err)
	}
	made, err := m.Run(ctx, c)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			undo, cancel := life.Undoing(ctx)
			defer cancel()
			err = errors.Join(err, m.Remove(undo, made))
		}
	}()
	for i := range containers {
		c := &containers[i]
		id, err := m.createFrom(ctx, made, *c, filepath.Join(dir, strconv.Itoa(saved[c.Name])))
		if err != nil {
			return "", nil, errdefs.During("restore pod", made, err)
		}
		out = append(out, Restored{c.Name, id})
	}
	return made, out, nil
}

// openSavedPod checks a pod's checkpoint against what is wanted of it, and returns the
// numbers of the containers by name.
func (m *Manager) openSavedPod(dir string, c *podconfig.Pod, containers []podconfig.Container) (map[string]int, error) {
	if !m.opts.Restore {
		return nil, errdefs.Errorf(errdefs.ErrPrecondition, "restoring is off; set runtime.restore to have it, and read what it means")
	}
	if !filepath.IsAbs(dir) {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint %q is not an absolute path", dir)
	}
	root, err := safepath.Open(dir)
	if err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %w", err)
	}
	defer root.Close()
	b, err := root.ReadFile(savedPodName, maxSavedJSON)
	if err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %w", err)
	}
	var saved savedPod
	if err := json.Unmarshal(b, &saved); err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s: %w", savedPodName, err)
	}
	if saved.Version != savedPodVersion {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s has version %d, this daemon knows %d", savedPodName, saved.Version,
			savedPodVersion)
	}
	if saved.Handler != c.RuntimeHandler {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint of runtime handler %q; %q cannot restore it", saved.Handler, c.RuntimeHandler)
	}
	numbers := map[string]int{}
	for i, name := range saved.Containers {
		numbers[name] = i
		// A link would lead to files that are not of this checkpoint.
		if st, err := os.Lstat(filepath.Join(dir, strconv.Itoa(i))); err != nil || !st.IsDir() {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %d, of container %q, is not a directory in it", i, name)
		}
	}
	wanted := map[string]bool{}
	for i := range containers {
		name := containers[i].Name
		if _, ok := numbers[name]; !ok || wanted[name] {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "container %q is not in the checkpoint, or named twice; there are %q", name,
				saved.Containers)
		}
		wanted[name] = true
	}
	if len(wanted) == 0 || len(wanted) != len(numbers) {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "%d containers are configured, the checkpoint has %q", len(wanted), saved.Containers)
	}
	return numbers, nil
}

// createFrom is Create of a container that goes on from a checkpoint.
func (m *Manager) createFrom(ctx context.Context, podID string, c podconfig.Container, dir string) (id string, err error) {
	p, err := m.pods.Find(podID)
	if err != nil {
		return "", err
	}
	if err := c.Validate(); err != nil {
		return "", errdefs.During("create container", c.Name, err)
	}
	err = m.life.Run(ctx, createLimit, func(ctx context.Context) error {
		id, err = m.create(ctx, p, c, dir)
		return errdefs.During("create container", c.Name, err)
	})
	return id, err
}

// checkpointIn says what is saved in an image, nil if it is an ordinary one: a checkpoint image
// is the archive of a checkpoint as its only layer, and says nothing of what to run. Other
// runtimes know theirs by annotations, each by its own.
func (m *Manager) checkpointIn(ctx context.Context, e *state.ContainerEntry, img *image.Image) (*checkpointed, error) {
	if !m.opts.Restore || len(img.Layers) != 1 || len(img.Config.Entrypoint)+len(img.Config.Cmd) > 0 {
		return nil, nil
	}
	target := filepath.Join(m.dirs.Containers().Of(e.ID), "checkpoint")
	_, err := m.Snapshots.Prepare(ctx, state.CheckpointImageID(e.ID),
		snapshot.PrepareOptions{Layers: img.Layers, Target: target, Access: snapshot.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("checkpoint image: %w", err)
	}
	saved, err := openSaved(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, m.Snapshots.Remove(ctx, state.CheckpointImageID(e.ID))
	}
	return saved, err
}

// baseOf is the image that a restored container is made from: the one that its configuration names,
// which must be that of the saved container, or, where this names a checkpoint, the one that the
// checkpoint names. The author of the checkpoint chose that image, and the kubelet has not checked
// it: it could be any image on the node, such as one that was pulled with another namespace's
// credentials. So the operator lists the images that a checkpoint may name.
func (m *Manager) baseOf(s *checkpointed, named image.Image, from string) (image.Image, error) {
	if from != "" {
		if id := named.ID.String(); s.config.ImageID != id {
			return image.Image{}, s.differs("image %s; the checkpoint of %s is of image %q", id, s.config.ImageID)
		}
		return named, nil
	}
	for _, ref := range []string{s.config.ImageID, s.config.ImageRef, s.config.ImageName} {
		if ref == "" {
			continue
		}
		if img, err := m.Images.Get(ref); err == nil && m.mayBeBase(&img) {
			return img, nil
		}
	}
	// One error for both: who wrote the checkpoint is not told which images there are.
	return image.Image{}, errdefs.Errorf(errdefs.ErrNotFound,
		"image %.100q (%.80q) of the saved container %.100q is not on this node, or not in runtime.restore_bases; pull it or add it there",
		s.config.ImageName, s.config.ImageID, s.config.Name)
}

// mayBeBase says whether the operator lets checkpoints name an image. What counts are the image's
// names here, whatever the checkpoint calls it.
func (m *Manager) mayBeBase(img *image.Image) bool {
	return slices.ContainsFunc(slices.Concat(img.RepoTags, img.RepoDigests), func(name string) bool {
		return slices.ContainsFunc(m.opts.RestoreBases, func(base string) bool {
			prefix, isPrefix := strings.CutSuffix(base, "*")
			return name == base || isPrefix && strings.HasPrefix(name, prefix)
		})
	})
}

// layersOf are the layers of a saved container's root: its image's, and one with what it had
// written, which is kept until release is called.
func (m *Manager) layersOf(ctx context.Context, id string, s *checkpointed,
	img *image.Image,
) (layers []digest.Digest, release func(context.Context) error, err error) {
	f, err := s.diff()
	if err != nil {
		return nil, nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %w", err)
	}
	if f == nil {
		return img.Layers, func(context.Context) error { return nil }, nil
	}
	defer f.Close()
	d, release, err := m.Snapshots.AddLayer(ctx, id, f)
	if err != nil {
		return nil, nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s: %w", savedDiffName, err)
	}
	return append(append([]digest.Digest{}, img.Layers...), d), release, nil
}
