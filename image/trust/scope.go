package trust

import (
	"fmt"
	"slices"
	"strings"
)

// ruleFor finds the longest scope that a repository is in, and words it. A registry on another port
// than its own may be a different one, which what is accepted of the host must not speak for; but
// a port must not get around a rule that asks for signatures of a host.
func (p *Policy) ruleFor(repo string) (r rule, scope string) {
	name := canonical(repo)
	if path, ok := strings.CutPrefix(name, hub+"/"); ok && !strings.Contains(path, "/") {
		name = hub + "/library/" + path // as references to docker.io itself are
	}
	if r, scope := p.longest(name, anyRule); r != nil {
		return r, fmt.Sprintf("scope %q", scope)
	}
	if r, scope := p.longest(withoutPort(name), asks); r != nil {
		return r, fmt.Sprintf("scope %q", scope)
	}
	return p.byDef, "the default"
}

// longest finds the longest scope that a canonical name is in, of those whose rule counts; nil if
// there is none.
func (p *Policy) longest(name string, counts func(rule) bool) (r rule, scope string) {
	for at := name; at != ""; at = at[:max(strings.LastIndexByte(at, '/'), 0)] {
		if r, ok := p.scopes[at]; ok && counts(r) {
			return r, at
		}
	}
	return nil, ""
}

func anyRule(rule) bool { return true }

func asks(r rule) bool {
	_, accepts := r.(accept)
	return !accepts
}

// hub is what references call Docker Hub, hubNames are hosts that serve it, and so the same images.
const hub = "docker.io"

var hubNames = []string{"registry-1.docker.io", "index.docker.io", "registry.hub.docker.com"}

// canonical is one name for all that mean the same: DNS knows no case, 443 is the port of
// HTTPS, and Docker Hub has several names. A host's addresses are unknown here.
func canonical(repo string) string {
	domain, path, below := strings.Cut(strings.ToLower(repo), "/")
	domain = strings.TrimSuffix(domain, ":443")
	if slices.Contains(hubNames, domain) {
		domain = hub
	}
	if !below {
		return domain
	}
	return domain + "/" + path
}

// withoutPort is a canonical name without its registry's port.
func withoutPort(name string) string {
	domain, path, below := strings.Cut(name, "/")
	if i := strings.LastIndexByte(domain, ':'); i > strings.LastIndexByte(domain, ']') {
		domain = domain[:i]
	}
	if !below {
		return domain
	}
	return domain + "/" + path
}
