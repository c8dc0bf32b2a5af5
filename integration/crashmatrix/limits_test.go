package crashmatrix

import (
	"slices"
	"strings"
)

// limit is a known loss. It is on the page and does not fail the test. Any other loss in the same
// cell does.
type limit struct {
	kind  string   // of fault
	point string   // prefix
	lost  []string // prefixes: each line of the loss has one
	says  string   // text for the page
}

var limits = []limit{
	{
		"kill keeper and shim", "",
		[]string{"exit code 255, want"},
		"The exit status of a container that ends while neither shim nor keeper lives is unknown: it is 255.",
	},
}

// onOldKernel adds what is lost before Linux 6.15: also the exit status of a container that ends
// after its shim and the keeper that started this shim have died. In all other cells one of them
// lives (freshShim).
func onOldKernel() { limits[0].lost = append(limits[0].lost, "bystander: exit code 255, want") }

// of reports whether a limit applies to a cell.
func (l limit) of(kind, point string) bool {
	return l.kind == kind && strings.HasPrefix(point, l.point)
}

// knownLimit returns the page's text for a loss, or "" if the limit does not cover all of it.
func knownLimit(kind, point string, lost error) string {
	if lost == nil {
		return ""
	}
	for _, l := range limits {
		if !l.of(kind, point) {
			continue
		}
		known := true
		for part := range strings.Lines(lost.Error()) {
			known = known && slices.ContainsFunc(l.lost, func(prefix string) bool { return strings.HasPrefix(part, prefix) })
		}
		if known {
			return l.says
		}
	}
	return ""
}
