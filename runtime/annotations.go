package runtime

import (
	"slices"
	"strings"
)

// steering are annotations by which OCI runtimes are told what to do, or what their names begin
// with: crun's hooks write to files of the host, and systemd's properties lift limits. `runc
// features` and `crun features` have most of them (potentiallyUnsafeConfigAnnotations).
var (
	steering         = []string{"bundle"}
	steeringPrefixes = []string{"run.oci.", "org.systemd.property.", "org.criu.", "module.wasm.image/", "krun.", "dev.gvisor."}
)

// Steers says whether an annotation of a container makes an OCI runtime act on the host. Such an
// annotation is more than a note.
func Steers(annotation string) bool {
	return slices.Contains(steering, annotation) || slices.ContainsFunc(steeringPrefixes, func(prefix string) bool {
		return strings.HasPrefix(annotation, prefix)
	})
}
