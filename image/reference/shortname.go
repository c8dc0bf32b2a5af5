package reference

import (
	"fmt"
	"strings"
)

// ShortNames is the registry, with a path if need be, where names without one are;
// empty if such names are refused.
type ShortNames string

// DockerHub is the registry that Docker takes names without one to be of.
const DockerHub = "docker.io"

// IsShort says whether a reference names no registry, by Docker's rule: the part before
// the first slash is one if it has a dot, a colon or a capital, or is localhost.
func IsShort(ref string) bool {
	first, _, ok := strings.Cut(ref, "/")
	return !ok || !strings.ContainsAny(first, ".:") && first != "localhost" && strings.ToLower(first) == first
}

// Parse reads the reference of a pull.
func (s ShortNames) Parse(ref string) (Name, error) {
	if !IsShort(ref) {
		return Parse(ref)
	}
	n, err := Parse(ref)
	switch {
	case err != nil:
		return n, err
	case s == "":
		return Name{}, fmt.Errorf("%w: %q names no registry: write %s if Docker Hub is meant, or set image.short_name_registry", ErrInvalid, ref,
			n)
	case s == DockerHub:
		return n, nil
	}
	return Parse(string(s) + "/" + ref)
}
