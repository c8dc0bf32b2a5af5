package image

import (
	"fmt"
	"strings"
)

// shortNames is the registry, with a path if need be, where names without one are;
// empty if such names are refused.
type shortNames string

// dockerHub is the registry that Docker takes names without one to be of.
const dockerHub = "docker.io"

// isShort says whether a reference names no registry, by Docker's rule: the part before
// the first slash is one if it has a dot, a colon or a capital, or is localhost.
func isShort(ref string) bool {
	first, _, ok := strings.Cut(ref, "/")
	return !ok || !strings.ContainsAny(first, ".:") && first != "localhost" && strings.ToLower(first) == first
}

// parse reads the reference of a pull.
func (s shortNames) parse(ref string) (name, error) {
	if !isShort(ref) {
		return parseName(ref)
	}
	n, err := parseName(ref)
	switch {
	case err != nil:
		return n, err
	case s == "":
		return name{}, fmt.Errorf("%w: %q names no registry: write %s if Docker Hub is meant, or set image.short_name_registry", ErrInvalidReference, ref, n)
	case s == dockerHub:
		return n, nil
	}
	return parseName(string(s) + "/" + ref)
}

// parse reads a reference to an image that may be here. A short name is one in the
// configured registry, or what Docker takes it for: nothing is fetched from there.
func (c *catalog) parse(ref string) (name, error) {
	if c.short != "" && isShort(ref) {
		n, err := c.short.parse(ref)
		if _, here := c.ids[n.String()]; err == nil && here {
			return n, nil
		}
	}
	return parseName(ref)
}
