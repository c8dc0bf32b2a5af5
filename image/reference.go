package image

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// name is a normalized reference: docker.io/library/busybox with a tag or a digest,
// never both.
type name struct {
	repo   string // docker.io/library/busybox
	domain string // docker.io
	path   string // library/busybox
	tag    string
	digest digest.Digest
}

// parseName normalizes a reference as docker does: the domain defaults to docker.io,
// the tag to latest; next to a digest a tag means nothing and is dropped.
func parseName(ref string) (name, error) {
	if _, err := digest.Parse(ref); err == nil {
		return name{}, fmt.Errorf("%w: %q is an image id, which no registry knows: give name:tag or name@digest", ErrInvalidReference, ref)
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return name{}, fmt.Errorf("%w: %q: %w", ErrInvalidReference, ref, err)
	}
	n := name{repo: named.Name(), domain: reference.Domain(named), path: reference.Path(named)}
	if d, ok := named.(reference.Digested); ok {
		if err := checkDigest(d.Digest()); err != nil {
			return name{}, fmt.Errorf("%w: %q: %w", ErrInvalidReference, ref, err)
		}
		n.digest = d.Digest()
		return n, nil
	}
	n.tag = "latest"
	if t, ok := named.(reference.Tagged); ok {
		n.tag = t.Tag()
	}
	return n, nil
}

// String is the form under which index.json and CRI know the image.
func (n name) String() string {
	if n.digest != "" {
		return n.repo + "@" + n.digest.String()
	}
	return n.repo + ":" + n.tag
}

// wanted is what the registry's manifests endpoint is asked for.
func (n name) wanted() string {
	if n.digest != "" {
		return n.digest.String()
	}
	return n.tag
}

// checkDigest accepts what the store can hold: well-formed SHA-256.
func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w", d, err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %q: only sha256 is supported", d)
	}
	return nil
}

// minIDPrefix is how much of an id must be given, so that a short name that happens
// to be hexadecimal ("cafe") never means some other image.
const minIDPrefix = 6

// idPrefix says whether s can be an image id or the beginning of one, and gives its
// hex digits.
func idPrefix(s string) (hex string, ok bool) {
	hex = strings.TrimPrefix(s, "sha256:")
	if len(hex) < minIDPrefix || len(hex) > 64 {
		return "", false
	}
	for _, c := range hex {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", false
		}
	}
	return hex, true
}
