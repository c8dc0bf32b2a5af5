// Package trust decides whether an image may be used: by a policy that says for each
// registry or repository who has to have signed. It is asked when a reference has been
// resolved to a digest, before anything else of the image is fetched, and finds signatures
// in the image's own repository, with the pull's own credentials.
//
// # Policy
//
// A TOML file (docs/images.md has one in full). A scope is a registry or the beginning of a
// repository's path; of those that fit the longest counts, and alone:
//
//	default = "reject"                  # what no scope names: accept or reject
//
//	[scope."registry.example/team"]
//	policy = "cosign"                   # or accept, reject, notation
//	keys = ["team.pub"]                 # one valid signature by one of them is enough
//
// # Life
//
// The file and the keys are read for each pull, so that a change counts at once. A file
// that cannot be read or understood refuses every image.
//
// # What is signed
//
// The digest that the reference named (of an index if it is one), or that of the manifest
// taken from there. Signatures by key are verified offline: no transparency log is asked.
//
// # Errors
//
// ErrUntrusted, with what was found; or an error of the registry, if it could not be asked
// for signatures. Neither lets an image through.
package trust

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/registry"
)

// ErrUntrusted says that the policy does not let an image through.
var ErrUntrusted = errors.New("image is not trusted")

// Limits of what a registry can make us look at for one image.
const (
	maxSignatures = 64
	maxPayload    = 1 << 20 // of one signature, bytes
)

// Repository is where an image's signatures are; registry.Repository implements it.
type Repository interface {
	// String is registry and path.
	String() string
	Resolve(ctx context.Context, tagOrDigest string) (ocispec.Descriptor, []byte, error)
	Fetch(ctx context.Context, d ocispec.Descriptor) ([]byte, error)
	Referrers(ctx context.Context, d digest.Digest, artifactType string) ([]ocispec.Descriptor, error)
}

// Policy is a file that has been read.
type Policy struct {
	path   string
	byDef  rule
	scopes map[string]rule
}

// rule is what one scope asks for.
type rule interface {
	// check looks for a signature of a document. Its error says why there is none that
	// counts; if it is no errReason, it is the registry's.
	check(ctx context.Context, repo Repository, d ocispec.Descriptor) error
}

// errReason is why a signature does not count, or that there is none.
type errReason struct{ text string }

func (e *errReason) Error() string { return e.text }

func reason(format string, args ...any) error { return &errReason{fmt.Sprintf(format, args...)} }

// Check lets an image through or says why not. documents are what the reference
// named and the manifest taken from it, which may be the same. Kinds: ErrUntrusted, the
// registry's.
func (p *Policy) Check(ctx context.Context, repo Repository, documents ...ocispec.Descriptor) error {
	r, scope := p.ruleFor(repo.String())
	var why error
	for i, d := range documents {
		if i > 0 && d.Digest == documents[0].Digest {
			continue
		}
		err := r.check(ctx, repo, d)
		if err == nil {
			return nil
		}
		var no *errReason
		if !errors.As(err, &no) {
			return fmt.Errorf("signatures of %s@%s: %w", repo, d.Digest, err)
		}
		if why == nil {
			why = err // what the reference named is what should be signed
		}
	}
	return fmt.Errorf("%w: %s@%s: %w (%s of %s)", ErrUntrusted, repo, documents[0].Digest, why, scope, p.path)
}

// accept and reject are the rules that look at nothing.
type (
	accept struct{}
	reject struct{}
)

func (accept) check(context.Context, Repository, ocispec.Descriptor) error { return nil }

func (reject) check(context.Context, Repository, ocispec.Descriptor) error {
	return reason("the policy rejects it")
}

// bundled fetches the single layer of a signature's manifest, if the manifest is of the
// wanted type.
func bundled(ctx context.Context, repo Repository, d ocispec.Descriptor, artifactType string) ([]byte, ocispec.Descriptor, error) {
	data, err := small(ctx, repo, d)
	if err != nil {
		return nil, d, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return nil, d, err
	}
	if len(m.Layers) != 1 {
		return nil, d, reason("its manifest has %d layers, not one", len(m.Layers))
	}
	// Tools for OCI 1.0 wrote the type as the configuration's.
	if m.ArtifactType != artifactType && m.Config.MediaType != artifactType {
		return nil, d, reason("it is of type %q", m.ArtifactType)
	}
	blob, err := small(ctx, repo, m.Layers[0])
	return blob, m.Layers[0], err
}

// small fetches a blob that an untrusted manifest names.
func small(ctx context.Context, repo Repository, d ocispec.Descriptor) ([]byte, error) {
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 {
		return nil, reason("digest %q is not a SHA-256 digest", d.Digest)
	}
	if d.Size < 0 || d.Size > maxPayload {
		return nil, reason("it has %d bytes, more than the %d allowed", d.Size, maxPayload)
	}
	return repo.Fetch(ctx, d)
}

// tries collects why none of several signatures counts.
type tries struct {
	n     int
	first error
}

// failed takes what is wrong with a signature; an error that is no reason is returned,
// since it may hide a signature that counts.
func (t *tries) failed(err error) error {
	var no *errReason
	if !errors.As(err, &no) && !errors.Is(err, registry.ErrInvalid) && !errors.Is(err, registry.ErrNotFound) {
		return err
	}
	t.n++
	if t.first == nil {
		t.first = err
	}
	return nil
}

// verdict is the reason that nothing counted.
func (t *tries) verdict(by string) error {
	switch t.n {
	case 0:
		return reason("it has no signature by %s", by)
	case 1:
		return reason("its signature by %s does not count: %v", by, t.first)
	}
	return reason("none of its %d signatures by %s counts: %v", t.n, by, t.first)
}
