package cri

import (
	"context"
	"errors"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/image"
)

// PullImage fetches an image and answers with its id.
func (s *service) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := r.GetImage().GetImage()
	if err := field.Required("image.image", ref); err != nil {
		return nil, err
	}
	auth, err := credentials(r.GetAuth(), ref)
	if err != nil {
		return nil, err
	}
	handler := r.GetImage().GetRuntimeHandler()
	if err := s.knowsHandler(handler); err != nil {
		return nil, err
	}
	img, err := s.deps.Images.Pull(ctx, ref, image.PullOptions{Auth: auth})
	if err != nil {
		return nil, pullError(err)
	}
	if handler != "" && s.deps.Unpack != nil {
		if err := s.deps.Unpack(ctx, handler, &img); err != nil {
			return nil, err
		}
	}
	if s.deps.Pulled != nil {
		s.deps.Pulled(img.Size)
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID.String()}, nil
}

// knowsHandler refuses to pull for a runtime handler that no pod could have.
func (s *service) knowsHandler(name string) error {
	if name == "" || s.config.Handlers == nil {
		return nil
	}
	for _, h := range s.config.Handlers() {
		if h.Name == name {
			return nil
		}
	}
	return field.Invalid("image.runtime_handler", "%q is not configured", name)
}

// ListImages lists images, or the one that the filter names.
func (s *service) ListImages(_ context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	items, err := s.imageItems(r.GetFilter())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListImagesResponse{Images: items}, nil
}

func (s *service) imageItems(f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	if ref := f.GetImage().GetImage(); ref != "" {
		img, err := s.deps.Images.Get(ref)
		if errors.Is(err, image.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []*runtimeapi.Image{imageItem(&img)}, nil
	}
	all := s.deps.Images.List()
	items := make([]*runtimeapi.Image, 0, len(all))
	for i := range all {
		items = append(items, imageItem(&all[i]))
	}
	return items, nil
}

// ImageStatus reports one image. An absent one is an empty answer, not an error.
func (s *service) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	ref := r.GetImage().GetImage()
	if err := field.Required("image.image", ref); err != nil {
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
	if err := field.Required("image.image", ref); err != nil {
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
		Pinned:      img.Pinned,
	}
}

// imageUser splits the image config's "user[:group]": the kubelet wants a number for
// its runAsNonRoot check, or else the name. An empty user is root.
func imageUser(user string) (*runtimeapi.Int64Value, string) {
	name, _, _ := strings.Cut(user, ":")
	if name == "" {
		return &runtimeapi.Int64Value{Value: 0}, ""
	}
	// A number beyond int64 goes as a name, which the kubelet cannot verify: no container can have
	// either.
	if uid, err := strconv.ParseInt(name, 10, 64); err == nil {
		return &runtimeapi.Int64Value{Value: uid}, ""
	}
	return nil, name
}
