package images

import (
	"context"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// service is CRI's image service as upstream's image manager wants it.
type service struct {
	images runtimeapi.ImageServiceClient
}

func spec(i kubecontainer.ImageSpec) *runtimeapi.ImageSpec {
	annotations := make(map[string]string, len(i.Annotations))
	for _, a := range i.Annotations {
		annotations[a.Name] = a.Value
	}
	return &runtimeapi.ImageSpec{Image: i.Image, Annotations: annotations, RuntimeHandler: i.RuntimeHandler}
}

// PullImage tries each of the credentials in turn, or none if there are none.
func (s *service) PullImage(ctx context.Context, i kubecontainer.ImageSpec, credentials []credentialprovider.TrackedAuthConfig,
	sandbox *runtimeapi.PodSandboxConfig,
) (string, *credentialprovider.TrackedAuthConfig, error) {
	request := &runtimeapi.PullImageRequest{Image: spec(i), SandboxConfig: sandbox}
	if len(credentials) == 0 {
		resp, err := s.images.PullImage(ctx, request)
		return resp.GetImageRef(), nil, err
	}
	var errs []error
	for n := range credentials {
		c := &credentials[n]
		request.Auth = &runtimeapi.AuthConfig{
			Username: c.Username, Password: c.Password, Auth: c.Auth,
			ServerAddress: c.ServerAddress, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken,
		}
		resp, err := s.images.PullImage(ctx, request)
		if err == nil {
			return resp.GetImageRef(), c, nil
		}
		errs = append(errs, err)
	}
	return "", nil, utilerrors.NewAggregate(errs)
}

func (s *service) status(ctx context.Context, i kubecontainer.ImageSpec) (*runtimeapi.Image, error) {
	resp, err := s.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec(i)})
	return resp.GetImage(), err
}

// GetImageRef returns an image's id, empty if it is not on the node.
func (s *service) GetImageRef(ctx context.Context, i kubecontainer.ImageSpec) (string, error) {
	image, err := s.status(ctx, i)
	return image.GetId(), err
}

// GetImageSize returns an image's size in bytes, 0 if it is not on the node.
func (s *service) GetImageSize(ctx context.Context, i kubecontainer.ImageSpec) (uint64, error) {
	image, err := s.status(ctx, i)
	return image.GetSize(), err
}

// ListImages returns the images on the node.
func (s *service) ListImages(ctx context.Context) ([]kubecontainer.Image, error) {
	resp, err := s.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	images := make([]kubecontainer.Image, 0, len(resp.Images))
	for _, i := range resp.Images {
		images = append(images, kubecontainer.Image{
			ID: i.Id, RepoTags: i.RepoTags, RepoDigests: i.RepoDigests, Size: int64(i.Size), Pinned: i.Pinned,
			Spec: kubecontainer.ImageSpec{Image: i.Id, RuntimeHandler: i.GetSpec().GetRuntimeHandler()},
		})
	}
	return images, nil
}

// RemoveImage removes an image with all its names.
func (s *service) RemoveImage(ctx context.Context, i kubecontainer.ImageSpec) error {
	_, err := s.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec(i)})
	return err
}

// ImageStats sums the images' sizes up.
func (s *service) ImageStats(ctx context.Context) (*kubecontainer.ImageStats, error) {
	images, err := s.ListImages(ctx)
	stats := &kubecontainer.ImageStats{}
	for _, i := range images {
		stats.TotalStorageBytes += uint64(i.Size)
	}
	return stats, err
}

// ImageFsInfo returns the file systems that images are on.
func (s *service) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return s.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
}
