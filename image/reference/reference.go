// Package reference reads the names of images: registry, path, and a tag or a digest.
package reference

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// ErrInvalid is a reference that is none.
var ErrInvalid = errors.New("invalid image reference")

// Name is a normalized reference: docker.io/library/busybox with a tag or a digest,
// never both.
type Name struct {
	Repo   string // docker.io/library/busybox
	Domain string // docker.io
	Path   string // library/busybox
	Tag    string
	Digest digest.Digest
}

// Parse normalizes a reference as docker does: the domain defaults to docker.io,
// the tag to latest; next to a digest a tag means nothing and is dropped.
func Parse(ref string) (Name, error) {
	if _, err := digest.Parse(ref); err == nil {
		return Name{}, fmt.Errorf("%w: %q is an image id, which no registry knows: give name:tag or name@digest", ErrInvalid, ref)
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return Name{}, fmt.Errorf("%w: %q: %w", ErrInvalid, ref, err)
	}
	n := Name{Repo: named.Name(), Domain: reference.Domain(named), Path: reference.Path(named)}
	if d, ok := named.(reference.Digested); ok {
		if err := CheckDigest(d.Digest()); err != nil {
			return Name{}, fmt.Errorf("%w: %q: %w", ErrInvalid, ref, err)
		}
		n.Digest = d.Digest()
		return n, nil
	}
	n.Tag = "latest"
	if t, ok := named.(reference.Tagged); ok {
		n.Tag = t.Tag()
	}
	return n, nil
}

// String is the form under which index.json and CRI know the image.
func (n Name) String() string {
	if n.Digest != "" {
		return n.Repo + "@" + n.Digest.String()
	}
	return n.Repo + ":" + n.Tag
}

// Wanted is what the registry's manifests endpoint is asked for.
func (n Name) Wanted() string {
	if n.Digest != "" {
		return n.Digest.String()
	}
	return n.Tag
}

// IsTag says whether s can be a tag.
func IsTag(s string) bool {
	return !strings.ContainsAny(s, "/:@") && reference.TagRegexp.FindString(s) == s
}

// WithDefaultTag adds a tag, if it is not empty, to a reference that has neither tag nor digest.
func WithDefaultTag(ref, tag string) string {
	if named, err := reference.ParseNormalizedNamed(ref); err == nil && tag != "" && reference.IsNameOnly(named) {
		return ref + ":" + tag
	}
	return ref
}

// CheckDigest accepts what the store can hold: well-formed SHA-256.
func CheckDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w", d, err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %q: only sha256 is supported", d)
	}
	return nil
}

// MinIDPrefix is how much of an id must be given, so that a short name that happens
// to be hexadecimal ("cafe") never means some other image.
const MinIDPrefix = 6

// IDPrefix says whether s can be an image id or the beginning of one, and gives its
// hex digits.
func IDPrefix(s string) (hex string, ok bool) {
	hex = strings.TrimPrefix(s, "sha256:")
	if len(hex) < MinIDPrefix || len(hex) > 64 {
		return "", false
	}
	for _, c := range hex {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", false
		}
	}
	return hex, true
}
