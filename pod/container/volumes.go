package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/safepath"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/snapshot"
)

// An image volume is an image's files, mounted read-only into a container. It is a
// snapshot that belongs to the container: its id follows from the container's and from the
// place of the mount in the configuration, so that nothing needs to be written down to find
// it again.

// volume is an image volume that is mounted on the host.
type volume struct {
	source string // what the container gets
	ref    string // of the image, as imageRef of containers
}

// mountVolumes mounts the images that the container's mounts name, by number of the mount.
func (cs *Containers) mountVolumes(ctx context.Context, e *state.ContainerEntry, users snapshot.Users,
	labels mac.Labels,
) (map[int]volume, error) {
	var out map[int]volume
	for i := range e.Get().Config.Mounts {
		mount := &e.Get().Config.Mounts[i]
		if mount.Image == "" {
			continue
		}
		v, err := cs.mountVolume(ctx, e, i, users, labels)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", mount.ContainerPath, err)
		}
		if out == nil {
			out = map[int]volume{}
		}
		out[i] = v
	}
	return out, nil
}

func (cs *Containers) mountVolume(ctx context.Context, e *state.ContainerEntry, i int, users snapshot.Users,
	labels mac.Labels,
) (volume, error) {
	mount := &e.Get().Config.Mounts[i]
	img, err := cs.Images.Get(mount.Image)
	if errors.Is(err, image.ErrNotFound) {
		return volume{}, errdefs.Errorf(errdefs.ErrNotFound, "image %q is not on this node; pull it first", mount.Image)
	}
	if err != nil {
		return volume{}, err
	}
	target := filepath.Join(cs.Dirs.Containers().Of(e.ID), "volumes", strconv.Itoa(i))
	_, err = cs.Snapshots.Prepare(ctx, state.VolumeID(e.ID, i), snapshot.PrepareOptions{
		Layers: img.Layers, Target: target, Users: users, Access: snapshot.ReadOnly,
		Label: labels.Mount,
	})
	if err != nil {
		return volume{}, err
	}
	if err := cs.FaultAt(ctx, faultCreateVolume); err != nil {
		return volume{}, err
	}
	v := volume{source: target, ref: imageRef(&img)}
	if mount.ImageSubPath == "" {
		return v, nil
	}
	// Links in the image lead to places in the image.
	root, err := safepath.Open(target)
	if err != nil {
		return volume{}, err
	}
	defer root.Close()
	if v.source, err = root.Real(mount.ImageSubPath); err != nil {
		return volume{}, errdefs.Errorf(errdefs.ErrInvalid, "sub-path %q of image %s: %w", mount.ImageSubPath, mount.Image, err)
	}
	return v, nil
}

// imageRef is how a container's status names an image: by a digest of a registry, else by
// its id.
func imageRef(img *image.Image) string {
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return img.ID.String()
}

// sources are where the volumes are mounted.
func sources(volumes map[int]volume) map[int]string {
	out := make(map[int]string, len(volumes))
	for i, v := range volumes {
		out[i] = v.source
	}
	return out
}

// removeVolumes takes the container's image volumes down.
func (cs *Containers) removeVolumes(ctx context.Context, e *state.ContainerEntry) error {
	ids := e.Get().Volumes()
	if cs.Checkpoints.Restore {
		ids = append(ids, state.CheckpointImageID(e.ID)) // of one whose making was cut off
	}
	for _, id := range ids {
		if err := cs.Snapshots.Remove(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
