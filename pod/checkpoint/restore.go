package checkpoint

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
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/snapshot"
)

// The author of a checkpoint decides what the restored processes have in memory, which files they
// have open, and which rights they have: that the checkpoint says of these what the container's
// configuration allows is checked (savedspec.go), that CRIU's images say the same is not. Restoring
// is therefore off unless the operator says otherwise.

// OpenPod checks a pod's checkpoint against what is wanted of it, and returns the
// numbers of the containers by name.
func (c *Store) OpenPod(dir string, of *podconfig.Pod, containers []podconfig.Container) (map[string]int, error) {
	if !c.Restore {
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
	b, err := root.ReadFile(podName, MaxJSON)
	if err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %w", err)
	}
	var saved podDescription
	if err := json.Unmarshal(b, &saved); err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s: %w", podName, err)
	}
	if saved.Version != podVersion {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s has version %d, this daemon knows %d", podName, saved.Version,
			podVersion)
	}
	if saved.Handler != of.RuntimeHandler {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint of runtime handler %q; %q cannot restore it", saved.Handler, of.RuntimeHandler)
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

// In says what is saved in an image, nil if it is an ordinary one: a checkpoint image
// is the archive of a checkpoint as its only layer, and says nothing of what to run. Other
// runtimes know theirs by annotations, each by its own.
func (c *Store) In(ctx context.Context, e *state.ContainerEntry, img *image.Image) (*Saved, error) {
	if !c.Restore || len(img.Layers) != 1 || len(img.Config.Entrypoint)+len(img.Config.Cmd) > 0 {
		return nil, nil
	}
	target := filepath.Join(c.Dirs.Containers().Of(e.ID), "checkpoint")
	_, err := c.Snapshots.Prepare(ctx, state.CheckpointImageID(e.ID),
		snapshot.PrepareOptions{Layers: img.Layers, Target: target, Access: snapshot.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("checkpoint image: %w", err)
	}
	saved, err := Open(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, c.Snapshots.Remove(ctx, state.CheckpointImageID(e.ID))
	}
	return saved, err
}

// Base is the image that a restored container is made from: the one that its configuration names,
// which must be that of the saved container, or, where this names a checkpoint, the one that the
// checkpoint names. The author of the checkpoint chose that image, and the kubelet has not checked
// it: it could be any image on the node, such as one that was pulled with another namespace's
// credentials. So the operator lists the images that a checkpoint may name.
func (c *Store) Base(s *Saved, named image.Image, from string) (image.Image, error) {
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
		if img, err := c.Images.Get(ref); err == nil && c.mayBeBase(&img) {
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
func (c *Store) mayBeBase(img *image.Image) bool {
	return slices.ContainsFunc(slices.Concat(img.RepoTags, img.RepoDigests), func(name string) bool {
		return slices.ContainsFunc(c.RestoreBases, func(base string) bool {
			prefix, isPrefix := strings.CutSuffix(base, "*")
			return name == base || isPrefix && strings.HasPrefix(name, prefix)
		})
	})
}

// Layers are the layers of a saved container's root: its image's, and one with what it had
// written, which is kept until release is called.
func (c *Store) Layers(ctx context.Context, id string, s *Saved,
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
	d, release, err := c.Snapshots.AddLayer(ctx, id, f)
	if err != nil {
		return nil, nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s: %w", DiffName, err)
	}
	return append(append([]digest.Digest{}, img.Layers...), d), release, nil
}
