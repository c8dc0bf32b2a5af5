package crashmatrix

import "strings"

// limit is a loss that is known. It is on the page, and does not fail the test; anything else that
// is lost in the same cell does.
type limit struct {
	kind  string // of fault
	point string // prefix
	lost  string // how each line of the loss begins
	says  string // on the page
}

var limits = []limit{
	{
		"kill keeper and shim", "", "exit code 255, want",
		"The exit status of a container that ended while there was neither shim nor keeper.",
	},
	{
		"kill starter", "", "left behind: process ",
		"A starter that was killed is a zombie until its shim starts the next container.",
	},
	{
		"no descriptors", "runtime.", "left behind: file",
		"A shim without descriptors cannot delete a directory that it has renamed for that: it stays until the next shim starts.",
	},
}

// of says whether a limit is about a cell.
func (l limit) of(kind, point string) bool {
	return l.kind == kind && strings.HasPrefix(point, l.point)
}

// knownLimit is what the page says of a loss, "" if there is more to it.
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
