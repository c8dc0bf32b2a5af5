package ocispec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

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

// profiles keeps the default profile for the last few sets of capabilities: nearly
// all containers of a node have the same one or two. The values are shared and must
// not be changed.
var profiles struct {
	mu     sync.Mutex
	byCaps map[string]*specs.LinuxSeccomp
}

// maxProfiles bounds the cache (about 60 KB each).
const maxProfiles = 4

func defaultProfile(s *specs.Spec) (*specs.LinuxSeccomp, error) {
	key := strings.Join(s.Process.Capabilities.Bounding, ",")
	profiles.mu.Lock()
	defer profiles.mu.Unlock()
	if p, ok := profiles.byCaps[key]; ok {
		return p, nil
	}
	p, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return nil, fmt.Errorf("default seccomp profile: %w", err)
	}
	tighten(p)
	if profiles.byCaps == nil || len(profiles.byCaps) >= maxProfiles {
		profiles.byCaps = map[string]*specs.LinuxSeccomp{}
	}
	profiles.byCaps[key] = p
	return p, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
