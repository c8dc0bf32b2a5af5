package podconfig

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

// Handler is what a RuntimeClass chooses. The zero value is Coracle's own runtime.
type Handler struct {
	// Runtime makes the containers: client.LaunchRequest.Handler.
	Runtime string
	// PrivilegedWithoutHostDevices gives privileged containers only those devices that they
	// ask for.
	PrivilegedWithoutHostDevices bool
	// Annotations are names, or patterns as path.Match has them, of those annotations of pods and
	// containers that the runtime gets to see. No pattern matches one that steers the runtime.
	Annotations []string
	// Overhead is what a pod needs beyond its containers, if the caller does not say.
	Overhead *Resources
	// Snapshotter is which driver makes the containers' roots; the node's if empty.
	Snapshotter snapshot.DriverName
	// LogLimit has containers' logs rotated by their writer.
	LogLimit client.LogLimit
}

// Handlers returns the handlers by name, as they are configured now.
type Handlers func() map[string]Handler

// names are all names that a pod may give, sorted. The unnamed handler is always there.
func (hs Handlers) names() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(hs())), func(name string) bool { return name == "" })
}

// Of is a pod's handler. The settings may have changed since the pod was made.
func (hs Handlers) Of(c *Pod) (Handler, error) {
	h, ok := hs()[c.RuntimeHandler]
	if !ok && c.RuntimeHandler != "" {
		return h, errdefs.Errorf(errdefs.ErrPrecondition, "runtime handler %q of the pod is no longer configured; there are %q",
			c.RuntimeHandler, hs.names())
	}
	return h, nil
}

// Sandboxed says that the runtime wants a pod to have a first container, the sandbox, before any
// other: shims of virtual machines make that of it. It is the pod's init.
func (h *Handler) Sandboxed() bool { return strings.HasPrefix(h.Runtime, runtime.ShimHandler) }

// PassedAnnotations are the annotations that the runtime gets to see; a container's own come before
// its pod's.
func (h *Handler) PassedAnnotations(pod, container map[string]string) map[string]string {
	out := map[string]string{}
	for _, from := range []map[string]string{pod, container} {
		for name, value := range from {
			if slices.ContainsFunc(h.Annotations, func(pattern string) bool { return matches(pattern, name) }) {
				out[name] = value
			}
		}
	}
	return out
}

// matches says whether a pattern matches a name.
func matches(pattern, name string) bool {
	if runtime.Steers(name) {
		return pattern == name
	}
	fits, err := path.Match(pattern, name)
	return err == nil && fits
}
