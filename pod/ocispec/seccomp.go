package ocispec

import (
	"fmt"
	"maps"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Seccomp is the profile to apply: the default one, or the JSON of another. The zero
// value is none.
type Seccomp struct {
	Default bool
	JSON    string
}

// load filters the profile by the spec's capabilities and this machine's architecture.
func (c Seccomp) load(s *specs.Spec) (*specs.LinuxSeccomp, error) {
	switch {
	case c.Default:
		return defaultProfile(s)
	case c.JSON != "":
		p, err := seccomp.LoadProfile(c.JSON, s)
		if err != nil {
			return nil, fmt.Errorf("seccomp profile: %w", err)
		}
		return p, nil
	}
	return nil, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
