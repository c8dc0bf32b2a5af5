package trust

import (
	"context"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// named is a rule that can be told apart.
type named string

func (named) check(context.Context, Repository, ocispec.Descriptor) error { return nil }

// A registry under another of its names, or on another port, does not get around its scope.
func TestScopesUnderOtherNames(t *testing.T) {
	p := Policy{byDef: named("default"), scopes: map[string]rule{}}
	for scope, r := range map[string]rule{
		"docker.io": named("hub"), "docker.io/library": named("official"), "r.example": named("r"), "r.example/team": named("team"),
		"r.example:5000": named("5000"), "open.example": accept{}, "rejected.example": reject{}, "Index.docker.io/capitals": named("capitals"),
		"[::1]": named("six"), "r.example/open": accept{},
	} {
		p.scopes[canonical(scope)] = r
	}
	for repo, want := range map[string]rule{
		"docker.io/library/busybox":            named("official"),
		"registry-1.docker.io/library/busybox": named("official"),
		"registry-1.docker.io/busybox":         named("official"),
		"registry-1.docker.io:443/some/app":    named("hub"),
		"registry.hub.docker.com/some/app":     named("hub"),
		"docker.io/capitals/x":                 named("capitals"),
		"docker.io.example/some/app":           named("default"),
		"r.example/app":                        named("r"),
		"R.example:443/team/app":               named("team"),
		"r.example:8443/team/app":              named("team"),
		"r.example:5000/team/app":              named("5000"),
		"r.example:50000/app":                  named("r"),
		"r.example/open/app":                   accept{},
		"r.example:8443/open/app":              named("r"),
		"x.r.example/app":                      named("default"),
		"open.example/app":                     accept{},
		"open.example:443/app":                 accept{},
		"open.example:8443/app":                named("default"),
		"rejected.example:8443/app":            reject{},
		"[::1]:5000/app":                       named("six"),
		"[::1]/app":                            named("six"),
		"192.0.2.1:443/team/app":               named("default"),
	} {
		if got, scope := p.ruleFor(repo); got != want {
			t.Errorf("%s: %v (%s), want %v", repo, got, scope, want)
		}
	}
}
