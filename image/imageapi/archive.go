package imageapi

import (
	"encoding/json"
	"errors"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// Save writes images as one archive.
func (s *service) Save(r *imagesv1.SaveRequest, out imagesv1.Images_SaveServer) error {
	if len(r.GetImages()) == 0 {
		return required("images", "")
	}
	format := image.OCIArchive
	switch r.GetFormat() {
	case imagesv1.Format_FORMAT_OCI:
	case imagesv1.Format_FORMAT_DOCKER:
		format = image.DockerArchive
	default:
		return status.Errorf(codes.InvalidArgument, "format: %s is not known", r.GetFormat())
	}
	w := chunks(out.Send)
	err := s.deps.Images.Save(out.Context(), w, r.GetImages(), image.SaveOptions{
		Format: format,
		Begin: func(bytes int64, notes []string) error {
			return out.Send(&imagesv1.Chunk{Total: bytes, Notes: notes})
		},
	})
	if err != nil {
		return err
	}
	return w.Flush()
}

// Load reads an archive of images.
func (s *service) Load(in imagesv1.Images_LoadServer) error {
	first, err := in.Recv()
	if errors.Is(err, io.EOF) {
		return required("data", "")
	}
	if err != nil {
		return err
	}
	r := &pieces{left: first.GetData(), next: func() ([]byte, error) {
		m, err := in.Recv()
		return m.GetData(), err
	}}
	var loaded image.Loaded
	if archive := first.GetArchive(); archive != "" {
		loaded, err = s.deps.Images.Preload(in.Context(), r, archive)
	} else {
		loaded, err = s.deps.Images.Load(in.Context(), r, first.GetName())
	}
	if err != nil {
		return err
	}
	resp := &imagesv1.LoadResponse{Notes: loaded.Notes}
	v := s.look()
	for i := range loaded.Images {
		resp.Images = append(resp.Images, s.message(&loaded.Images[i], v))
	}
	return in.SendAndClose(resp)
}

// Import makes an image of a root file system's archive.
func (s *service) Import(in imagesv1.Images_ImportServer) error {
	first, err := in.Recv()
	if errors.Is(err, io.EOF) {
		return required("data", "")
	}
	if err != nil {
		return err
	}
	if err := required("name", first.GetName()); err != nil {
		return err
	}
	var config ocispec.Image
	if c := first.GetConfiguration(); len(c) > 0 {
		if err := json.Unmarshal(c, &config); err != nil {
			return status.Errorf(codes.InvalidArgument, "configuration: %v", err)
		}
	}
	img, err := s.deps.Images.Import(in.Context(), &pieces{left: first.GetData(), next: func() ([]byte, error) {
		m, err := in.Recv()
		return m.GetData(), err
	}}, first.GetName(), config)
	if err != nil {
		return err
	}
	return in.SendAndClose(&imagesv1.ImportResponse{Image: s.one(img)})
}
