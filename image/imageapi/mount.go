package imageapi

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/image/layers"
	"github.com/coracle-project/coracle/snapshot"
)

// exportPrefix begins the ids of snapshots for the time of one call. No container has such an id.
const exportPrefix = "export-"

// cleanupTimeout bounds cleaning up after a call whose client may be gone.
const cleanupTimeout = time.Minute

// Mount shows an image's files at a directory.
func (s *service) Mount(ctx context.Context, r *imagesv1.MountRequest) (*imagesv1.MountResponse, error) {
	if err := required("image", r.GetImage()); err != nil {
		return nil, err
	}
	id, dir, err := mountPoint(r.GetDirectory())
	if err != nil {
		return nil, err
	}
	img, err := s.deps.Images.Get(r.GetImage())
	if err != nil {
		return nil, err
	}
	if _, err := s.deps.Snapshots.Get(id); errors.Is(err, snapshot.ErrNotFound) {
		// What is in the directory would be hidden, and the directory removed at the end.
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, status.Errorf(codes.InvalidArgument, "directory: %v", err)
		}
		if len(entries) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "directory: %s is not empty", dir)
		}
	}
	if err := s.prepare(ctx, id, dir, img); err != nil {
		return nil, err
	}
	return &imagesv1.MountResponse{}, nil
}

// Unmount ends a mount, and removes the directory.
func (s *service) Unmount(ctx context.Context, r *imagesv1.UnmountRequest) (*imagesv1.UnmountResponse, error) {
	id, dir, err := mountPoint(r.GetDirectory())
	if err != nil {
		return nil, err
	}
	if _, err := s.deps.Snapshots.Get(id); err != nil {
		return nil, status.Errorf(codes.NotFound, "no image is mounted at %s", dir)
	}
	if err := s.deps.Snapshots.Remove(ctx, id); err != nil {
		return nil, statusOf(err)
	}
	return &imagesv1.UnmountResponse{}, nil
}

// mountPoint checks a directory and names the snapshot that is mounted there.
func mountPoint(dir string) (id, clean string, err error) {
	if !filepath.IsAbs(dir) {
		return "", "", status.Errorf(codes.InvalidArgument, "directory: %q is not an absolute path", dir)
	}
	clean = filepath.Clean(dir)
	return layers.MountID(clean), clean, nil
}

// prepare mounts an image read-only.
func (s *service) prepare(ctx context.Context, id, dir string, img image.Image) error {
	_, err := s.deps.Snapshots.Prepare(ctx, id, snapshot.PrepareOptions{Layers: img.Layers, Target: dir, Access: snapshot.ReadOnly})
	return statusOf(err)
}

// Export writes an image's files.
func (s *service) Export(r *imagesv1.ExportRequest, out imagesv1.Images_ExportServer) (err error) {
	if err := required("image", r.GetImage()); err != nil {
		return err
	}
	img, err := s.deps.Images.Get(r.GetImage())
	if err != nil {
		return err
	}
	id := exportPrefix + rand.Text()
	if err := s.prepare(out.Context(), id, filepath.Join(s.deps.State, id), img); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(out.Context()), cleanupTimeout)
		defer cancel()
		err = errors.Join(err, s.deps.Snapshots.Remove(ctx, id))
	}()
	w := chunks(out.Send)
	if err := s.deps.Snapshots.Files(out.Context(), id, w); err != nil {
		return statusOf(err)
	}
	return w.Flush()
}

// statusOf gives snapshots' kinds of error their codes; others have theirs from the server.
func statusOf(err error) error {
	for _, k := range []struct {
		err  error
		code codes.Code
	}{
		{snapshot.ErrExists, codes.AlreadyExists},
		{snapshot.ErrNotFound, codes.NotFound},
		{snapshot.ErrLayerMissing, codes.FailedPrecondition},
		{snapshot.ErrInvalid, codes.InvalidArgument},
		{snapshot.ErrUnsupported, codes.Unimplemented},
	} {
		if errors.Is(err, k.err) {
			return status.Error(k.code, err.Error())
		}
	}
	return err
}
