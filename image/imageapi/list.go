package imageapi

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/pod"
)

// List returns all images.
func (s *service) List(context.Context, *imagesv1.ListRequest) (*imagesv1.ListResponse, error) {
	v := s.look()
	all := s.deps.Images.List()
	r := &imagesv1.ListResponse{Images: make([]*imagesv1.Image, len(all))}
	for i := range all {
		r.Images[i] = s.message(&all[i], v)
	}
	return r, nil
}

// Inspect returns one image and its documents.
func (s *service) Inspect(ctx context.Context, r *imagesv1.InspectRequest) (*imagesv1.InspectResponse, error) {
	if err := required("image", r.GetImage()); err != nil {
		return nil, err
	}
	img, docs, err := s.deps.Images.Documents(ctx, r.GetImage())
	if err != nil {
		return nil, err
	}
	return &imagesv1.InspectResponse{Image: s.message(&img, s.look()), Manifest: docs.Manifest, Configuration: docs.Config}, nil
}

// users are the containers' ids by the image that they were made of.
func (s *service) users() map[string][]string {
	users := map[string][]string{}
	for c := range s.deps.Containers.Containers(pod.ContainerFilter{}) {
		users[c.ImageID] = append(users[c.ImageID], c.ID)
	}
	return users
}

// view is what concerns more than one image, found out once for a call.
type view struct {
	users map[string][]string     // ids of containers by image
	alone map[digest.Digest]int64 // bytes that only this image needs
}

func (s *service) look() view {
	v := view{s.users(), map[digest.Digest]int64{}}
	for _, b := range s.deps.Images.Blobs() {
		if len(b.Images) == 1 {
			v.alone[b.Images[0]] += b.Bytes
		}
	}
	owners := map[digest.Digest]map[digest.Digest]bool{} // of layers
	for _, img := range s.deps.Images.List() {
		for _, l := range img.Layers {
			if owners[l] == nil {
				owners[l] = map[digest.Digest]bool{}
			}
			owners[l][img.ID] = true
		}
	}
	for _, snap := range s.deps.Snapshots.List() {
		for _, l := range snap.Layers {
			delete(owners, l)
		}
	}
	for l, images := range owners {
		if len(images) > 1 {
			continue
		}
		// A layer that was lost since is of no size.
		u, _ := s.deps.Snapshots.LayerUsage(l)
		for id := range images {
			v.alone[id] += u.Bytes
		}
	}
	return v
}

func (s *service) message(img *image.Image, v view) *imagesv1.Image {
	m := &imagesv1.Image{
		Id:         img.ID.String(),
		Tags:       img.RepoTags,
		Digests:    img.RepoDigests,
		Manifest:   img.Manifest.String(),
		Size:       img.Size,
		Pulled:     img.Pulled.UnixNano(),
		Containers: v.users[img.ID.String()],
		Frees:      v.alone[img.ID],
	}
	for _, d := range img.Layers {
		u, _ := s.deps.Snapshots.LayerUsage(d)
		m.Layers = append(m.Layers, &imagesv1.Layer{DiffId: d.String(), Bytes: u.Bytes, Inodes: u.Inodes})
	}
	return m
}

// one is message for an image that a call has just made or changed.
func (s *service) one(img image.Image) *imagesv1.Image { return s.message(&img, s.look()) }
