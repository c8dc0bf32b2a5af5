package ociimage

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// Registry is how to reach the registry that is pushed to.
type Registry struct {
	PlainHTTP          bool
	Username, Password string
	Client             *http.Client // nil: http.DefaultClient
}

// Push uploads what the registry does not have yet and tags the manifest. The
// reference is host[:port]/repository:tag.
func Push(ctx context.Context, ref string, b Built, r Registry) error {
	repo, err := remote.NewRepository(ref)
	if err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	repo.PlainHTTP = r.PlainHTTP
	client := r.Client
	if client == nil {
		client = http.DefaultClient
	}
	repo.Client = &auth.Client{
		Client: client,
		Credential: auth.StaticCredential(repo.Reference.Registry, auth.Credential{
			Username: r.Username, Password: r.Password,
		}),
	}
	for _, d := range b.Order {
		if d.Digest == b.Manifest.Digest {
			continue
		}
		have, err := repo.Blobs().Exists(ctx, d)
		if err != nil {
			return fmt.Errorf("push %s: %w", ref, err)
		}
		if have {
			continue
		}
		if err := repo.Blobs().Push(ctx, d, bytes.NewReader(b.Blobs[d.Digest])); err != nil {
			return fmt.Errorf("push %s blob %s: %w", ref, d.Digest, err)
		}
	}
	if err := repo.Manifests().PushReference(ctx, b.Manifest, bytes.NewReader(b.Blobs[b.Manifest.Digest]),
		repo.Reference.Reference); err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	return nil
}
