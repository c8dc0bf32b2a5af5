package toc

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/unpack"
)

// cleanName makes a path from the layer's root on of an entry's name.
func cleanName(name string) (string, error) {
	clean, err := unpack.CleanName(name)
	if err != nil {
		return "", err
	}
	if len(clean) >= unix.PathMax {
		return "", errors.New("name is too long")
	}
	for part := range strings.SplitSeq(clean, "/") {
		if len(part) > unix.NAME_MAX {
			return "", errors.New("name is too long")
		}
	}
	return clean, nil
}

// checkDigest accepts what content can be compared with.
func checkDigest(s string) (digest.Digest, error) {
	d := digest.Digest(s)
	if s == "" {
		return "", errors.New("it has no digest")
	}
	if err := d.Validate(); err != nil {
		return "", fmt.Errorf("digest %q: %w", s, err)
	}
	return d, nil
}
