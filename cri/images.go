package cri

import (
	"context"
	"errors"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image"
)

// PullImage fetches an image and answers with its id.
func (s *service) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := r.GetImage().GetImage()
	if err := required("image.image", ref); err != nil {
		return nil, err
	}
	auth, err := credentials(r.GetAuth(), ref)
	if err != nil {
		return nil, err
	}
	img, err := s.deps.Images.Pull(ctx, ref, image.PullOptions{Auth: auth})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID.String()}, nil
}

// ListImages lists images, or the one that the filter names.
func (s *service) ListImages(_ context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	if ref := r.GetFilter().GetImage().GetImage(); ref != "" {
		img, err := s.deps.Images.Get(ref)
		if errors.Is(err, image.ErrNotFound) {
			return &runtimeapi.ListImagesResponse{}, nil
		}
		if err != nil {
			return nil, err
		}
		return &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{imageItem(&img)}}, nil
	}
	all := s.deps.Images.List()
	resp := &runtimeapi.ListImagesResponse{Images: make([]*runtimeapi.Image, 0, len(all))}
	for i := range all {
		resp.Images = append(resp.Images, imageItem(&all[i]))
	}
	return resp, nil
}

// ImageStatus reports one image. An absent one is an empty answer, not an error.
func (s *service) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	ref := r.GetImage().GetImage()
	if err := required("image.image", ref); err != nil {
		return nil, err
	}
	img, err := s.deps.Images.Get(ref)
	if errors.Is(err, image.ErrNotFound) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ImageStatusResponse{Image: imageItem(&img)}
	if r.GetVerbose() {
		resp.Info, err = info(imageInfo{LayerCount: len(img.Layers), Layers: digests(&img), ImageSpec: imageSpec{Config: img.Config}})
	}
	return resp, err
}

// imageInfo is a verbose ImageStatus. crictl and others look for imageSpec.config.
type imageInfo struct {
	LayerCount int       `json:"layerCount"`
	Layers     []string  `json:"layers"`
	ImageSpec  imageSpec `json:"imageSpec"`
}

type imageSpec struct {
	Config ocispec.ImageConfig `json:"config"`
}

func digests(img *image.Image) []string {
	out := make([]string, len(img.Layers))
	for i, d := range img.Layers {
		out[i] = d.String()
	}
	return out
}

// RemoveImage removes an image with all its names. Removing an absent one succeeds.
func (s *service) RemoveImage(ctx context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	ref := r.GetImage().GetImage()
	if err := required("image.image", ref); err != nil {
		return nil, err
	}
	if err := s.deps.Images.Remove(ctx, ref); err != nil && !errors.Is(err, image.ErrNotFound) {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

func imageItem(img *image.Image) *runtimeapi.Image {
	uid, username := imageUser(img.Config.User)
	return &runtimeapi.Image{
		Id:          img.ID.String(),
		RepoTags:    img.RepoTags,
		RepoDigests: img.RepoDigests,
		Size:        uint64(max(img.Size, 0)),
		Uid:         uid,
		Username:    username,
		Spec:        &runtimeapi.ImageSpec{Image: img.ID.String()},
	}
}

// imageUser splits the image config's "user[:group]": the kubelet wants a number for
// its runAsNonRoot check, or else the name. An empty user is root.
func imageUser(user string) (*runtimeapi.Int64Value, string) {
	name, _, _ := strings.Cut(user, ":")
	if name == "" {
		return &runtimeapi.Int64Value{Value: 0}, ""
	}
	if uid, err := strconv.ParseInt(name, 10, 64); err == nil {
		return &runtimeapi.Int64Value{Value: uid}, ""
	}
	return nil, name
}
