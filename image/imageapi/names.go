package imageapi

import (
	"context"
	"errors"
	"slices"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// Tag gives an image one more name.
func (s *service) Tag(ctx context.Context, r *imagesv1.TagRequest) (*imagesv1.TagResponse, error) {
	if err := errors.Join(required("image", r.GetImage()), required("name", r.GetName())); err != nil {
		return nil, err
	}
	img, err := s.deps.Images.Tag(ctx, r.GetImage(), r.GetName())
	if err != nil {
		return nil, err
	}
	return &imagesv1.TagResponse{Image: s.one(img)}, nil
}

// Remove takes a name away, or an image with all its names.
func (s *service) Remove(ctx context.Context, r *imagesv1.RemoveRequest) (*imagesv1.RemoveResponse, error) {
	if err := required("image", r.GetImage()); err != nil {
		return nil, err
	}
	gone, err := s.deps.Images.Untag(ctx, r.GetImage())
	if err != nil {
		return nil, err
	}
	return &imagesv1.RemoveResponse{Untagged: gone.Names, Deleted: gone.ID.String(), Freed: gone.Bytes}, nil
}

// Prune removes images that no container was made of and that are not pinned: those
// without a tag, or all. An image that gets a tag or a container meanwhile stays. Then it collects
// garbage; with all, what is kept for a day of images that damage has lost is garbage, too.
func (s *service) Prune(ctx context.Context, r *imagesv1.PruneRequest) (*imagesv1.PruneResponse, error) {
	v := s.look()
	resp := &imagesv1.PruneResponse{}
	for _, seen := range s.deps.Images.List() {
		gone, err := s.deps.Images.RemoveIf(ctx, seen.ID, func(now image.Image) bool {
			return prunable(now, seen, r.GetAll()) && len(s.users()[now.ID.String()]) == 0
		})
		if err != nil {
			return nil, err
		}
		if gone.ID == "" {
			continue
		}
		resp.Removed = append(resp.Removed, s.message(&seen, v))
		resp.Freed += gone.Bytes
	}
	if r.GetAll() {
		if err := s.deps.Images.ReleaseSalvaged(ctx); err != nil {
			return nil, err
		}
	}
	freed, err := s.deps.Images.Collect(ctx)
	if err != nil {
		return nil, err
	}
	resp.Freed += freed
	return resp, nil
}

// prunable says whether an image that was seen before may go. It may not if it was pulled or tagged
// since.
func prunable(now, seen image.Image, all bool) bool {
	wanted := !now.Pulled.Equal(seen.Pulled) || !slices.Equal(now.RepoTags, seen.RepoTags)
	return !now.Pinned && !wanted && (all || len(now.RepoTags) == 0)
}
