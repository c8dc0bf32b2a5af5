// Package bases gets the images that a build starts with out of coracled, so that builds
// use the mirrors, credentials and policies that pulls have, and also images that no
// registry has.
package bases

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// Freshness says when an image is pulled.
type Freshness int

// When an image is pulled.
const (
	IfMissing Freshness = iota
	Always              // what its registry does not have is taken as it is here
)

// Collect puts images into a directory, as an OCI image layout does blobs, and returns the
// digests of their manifests. say is told what takes time.
func Collect(ctx context.Context, c imagesv1.ImagesClient, refs []string, f Freshness, dir string,
	say func(string),
) (map[string]digest.Digest, error) {
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o700); err != nil {
		return nil, err
	}
	found := map[string]digest.Digest{}
	for _, ref := range refs {
		if err := ensure(ctx, c, ref, f, say); err != nil {
			return nil, err
		}
		d, err := save(ctx, c, ref, dir)
		if err != nil {
			return nil, fmt.Errorf("image %s: %s", ref, status.Convert(err).Message())
		}
		found[ref] = d
	}
	return found, nil
}

// ensure has an image in the store.
func ensure(ctx context.Context, c imagesv1.ImagesClient, ref string, f Freshness, say func(string)) error {
	_, missing := c.Inspect(ctx, &imagesv1.InspectRequest{Image: ref})
	if missing != nil && status.Code(missing) != codes.NotFound {
		return errors.New(status.Convert(missing).Message())
	}
	if missing == nil && f == IfMissing {
		return nil
	}
	say("pull " + ref)
	err := pull(ctx, c, ref)
	if status.Code(err) == codes.NotFound && missing == nil {
		return nil // made here, and pushed nowhere
	}
	if err != nil {
		return errors.New(status.Convert(err).Message())
	}
	return nil
}

func pull(ctx context.Context, c imagesv1.ImagesClient, ref string) error {
	s, err := c.Pull(ctx, &imagesv1.PullRequest{Image: ref})
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// save writes an image's blobs and returns the digest of its manifest.
func save(ctx context.Context, c imagesv1.ImagesClient, ref, dir string) (digest.Digest, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.Save(ctx, &imagesv1.SaveRequest{Images: []string{ref}})
	if err != nil {
		return "", err
	}
	r := &chunks{s: s}
	d, err := extract(r, dir)
	if r.err != nil {
		return "", r.err
	}
	return d, err
}

var blobName = regexp.MustCompile(`^blobs/sha256/[0-9a-f]{64}$`)

// maxIndex bounds what of an index is read, bytes.
const maxIndex = 4 << 20

// extract takes blobs out of an OCI archive.
func extract(r io.Reader, dir string) (d digest.Digest, err error) {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			if d == "" {
				return "", errors.New("the archive of the image has no index")
			}
			return d, nil
		}
		if err != nil {
			return "", err
		}
		switch {
		case h.Name == ocispec.ImageIndexFile:
			if d, err = manifestOf(io.LimitReader(tr, maxIndex)); err != nil {
				return "", err
			}
		case blobName.MatchString(h.Name):
			if err := keep(filepath.Join(dir, h.Name), tr); err != nil {
				return "", err
			}
		}
	}
}

func manifestOf(r io.Reader) (digest.Digest, error) {
	var index ocispec.Index
	if err := json.NewDecoder(r).Decode(&index); err != nil {
		return "", fmt.Errorf("index of the image: %w", err)
	}
	if len(index.Manifests) != 1 {
		return "", fmt.Errorf("the index names %d images, not one", len(index.Manifests))
	}
	return index.Manifests[0].Digest, index.Manifests[0].Digest.Validate()
}

// keep writes a blob, unless another image has brought it.
func keep(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// chunks reads what Save sends.
type chunks struct {
	s    imagesv1.Images_SaveClient
	left bytes.Reader
	err  error // of the stream, but io.EOF
}

func (c *chunks) Read(p []byte) (int, error) {
	for c.left.Len() == 0 {
		m, err := c.s.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.err = err
			}
			return 0, err
		}
		c.left.Reset(m.GetData())
	}
	return c.left.Read(p)
}
