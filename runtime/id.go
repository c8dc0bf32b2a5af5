package runtime

import "fmt"

// MaxIDLength is the longest container id, in bytes. An id becomes a directory
// name, a part of a cgroup path and a keyring name.
const MaxIDLength = 128

// ValidateID checks a container id: 1 to MaxIDLength of the characters
// A-Z a-z 0-9 _ + - . and neither "." nor "..". The error is ErrInvalidID.
func ValidateID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidID)
	case len(id) > MaxIDLength:
		return fmt.Errorf("%w: %q… has %d characters, at most %d are allowed", ErrInvalidID, id[:32], len(id), MaxIDLength)
	case id == "." || id == "..":
		return fmt.Errorf("%w: %q is a directory's own name", ErrInvalidID, id)
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '_', c == '+', c == '-', c == '.':
		default:
			return fmt.Errorf("%w: %q has %q at position %d, use only letters, digits and . _ + -", ErrInvalidID, id, c, i+1)
		}
	}
	return nil
}
