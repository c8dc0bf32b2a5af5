package crashmatrix

import "strings"

// limit is a known loss. It is on the page and does not fail the test. Any other loss in the same
// cell does.
type limit struct {
	kind  string // of fault
	point string // prefix
	lost  string // prefix of each line of the loss
	says  string // text for the page
}

var limits = []limit{
	{
		"kill keeper and shim", "", "exit code 255, want",
		"The exit status of a container that ends while neither shim nor keeper lives is unknown: it is 255.",
	},
}

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
			known = known && strings.HasPrefix(part, l.lost)
		}
		if known {
			return l.says
		}
	}
	return ""
}
