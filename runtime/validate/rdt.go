package validate

import (
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// checkRdt checks the class of service, config-linux.md#intelrdt.
func checkRdt(r *specs.LinuxIntelRdt) error {
	if r == nil {
		return nil
	}
	const field = "linux.intelRdt."
	if id := r.ClosID; id == "." || id == ".." || id != "/" && strings.Contains(id, "/") || hasZero(id) {
		return invalid(field+"closID", "%q is no name of a directory", id)
	}
	if s := r.MemBwSchema; s != "" && !strings.HasPrefix(s, "MB:") {
		return invalid(field+"memBwSchema", "%q does not begin with MB:", s)
	}
	lines := texts{{field + "l3CacheSchema", r.L3CacheSchema}, {field + "memBwSchema", r.MemBwSchema}}
	for i, s := range r.Schemata {
		lines = append(lines, text{fmt.Sprintf("%sschemata[%d]", field, i), s})
	}
	for _, l := range lines {
		if strings.Contains(l.value, "\n") {
			return invalid(l.field, "%q has more than one line", l.value)
		}
	}
	return lines.check()
}
