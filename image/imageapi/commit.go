package imageapi

import (
	"context"
	"errors"
	"io"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/pod"
)

// Commit makes an image of a container's image and what the container changed. The
// image must still be there; the container may run or have ended.
func (s *service) Commit(ctx context.Context, r *imagesv1.CommitRequest) (*imagesv1.CommitResponse, error) {
	if err := errors.Join(required("container", r.GetContainer()), required("name", r.GetName())); err != nil {
		return nil, err
	}
	c, err := s.container(r.GetContainer())
	if err != nil {
		return nil, err
	}
	img, err := s.deps.Images.Extend(ctx, c.ImageID, r.GetName(), func(config *ocispec.Image) error {
		config.Author = r.GetAuthor()
		config.History = append(config.History, ocispec.History{
			CreatedBy: "coracle image commit " + c.ID, Author: r.GetAuthor(), Comment: r.GetComment(),
		})
		for _, change := range r.GetChanges() {
			if err := image.Change(&config.Config, change); err != nil {
				return err
			}
		}
		return nil
	}, func(ctx context.Context, w io.Writer) error {
		return statusOf(s.deps.Snapshots.Changes(ctx, c.ID, w))
	})
	if errors.Is(err, image.ErrNotFound) {
		return nil, status.Errorf(codes.FailedPrecondition, "the image of container %s is not in the store any more: pull %s again", c.ID,
			c.Config.UserImage)
	}
	if err != nil {
		return nil, err
	}
	return &imagesv1.CommitResponse{Image: s.one(img)}, nil
}

// container finds a container by its id or the beginning of it.
func (s *service) container(id string) (found pod.Container, err error) {
	for c := range s.deps.Containers.Containers(pod.ContainerFilter{}) {
		if !strings.HasPrefix(c.ID, id) {
			continue
		}
		if found.ID != "" {
			return found, status.Errorf(codes.InvalidArgument, "container: %q is the beginning of more than one id", id)
		}
		found = c
	}
	if found.ID == "" {
		return found, status.Errorf(codes.NotFound, "container: no container has the id %s", id)
	}
	return found, nil
}
