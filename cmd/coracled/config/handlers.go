package config

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coracle-project/coracle/internal/stricttoml"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
)

// What Handler.Runtime may be, or begin with.
const (
	ownRuntime  = "coracle"
	ociRuntime  = "oci:"
	shimRuntime = "shim:"
)

func (r *Runtime) check() error {
	errs := []error{checkLog("runtime", r.LogFileBytes, r.LogFiles)}
	for i, name := range r.Handlers {
		errs = append(errs, checkHandlerName("runtime.handlers", name))
		if slices.Contains(r.Handlers[:i], name) {
			errs = append(errs, wrong("runtime.handlers", "%q is listed twice", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Handler)) {
		key := stricttoml.KeyName([]string{"runtime", "handler", name})
		h := r.Handler[name]
		errs = append(errs, checkHandlerName(key, name), h.check(key))
		if slices.Contains(r.Handlers, name) {
			errs = append(errs, wrong(key, "%q is also in runtime.handlers; take it away there", name))
		}
	}
	return errors.Join(errs...)
}

// checkHandlerName wants what a RuntimeClass can have as its handler.
func checkHandlerName(key, name string) error {
	if name == "" {
		return wrong(key, "the unnamed handler is always there")
	}
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return wrong(key, "%q: only lower-case letters, digits and -", name)
	}
	return nil
}

func (h *Handler) check(key string) error {
	errs := []error{checkRuntime(key+".runtime", h.Runtime), checkLog(key, h.LogFileBytes, h.LogFiles)}
	for _, a := range h.Annotations {
		if _, err := filepath.Match(a, ""); err != nil || a == "" {
			errs = append(errs, wrong(key+".annotations", "%q is neither a name nor a pattern", a))
		}
		if i := strings.IndexAny(a, `*?[\`); i >= 0 && runtime.Steers(a[:i]) {
			errs = append(errs, wrong(key+".annotations",
				"%q: such annotations tell the runtime what to do on the host; name each that pods may use", a))
		}
	}
	if h.Snapshotter != "" {
		errs = append(errs, oneOf(key+".snapshotter", h.Snapshotter, "overlay", "erofs", "native"))
	}
	if h.OverheadCPUMillis < 0 {
		errs = append(errs, wrong(key+".overhead_cpu_millis", "%d is below 0", h.OverheadCPUMillis))
	}
	if h.OverheadMemoryBytes < 0 {
		errs = append(errs, wrong(key+".overhead_memory_bytes", "%d is below 0", h.OverheadMemoryBytes))
	}
	return errors.Join(errs...)
}

// maxLogFiles keeps a log's directory readable.
const maxLogFiles = 1000

func checkLog(key string, fileBytes int64, files int) error {
	var errs []error
	if fileBytes != 0 && fileBytes < api.MinLogBytes {
		errs = append(errs, wrong(key+".log_file_bytes", "%d is neither 0 nor at least %d", fileBytes, api.MinLogBytes))
	}
	if files != 0 && (files < 2 || files > maxLogFiles) {
		errs = append(errs, wrong(key+".log_files", "%d is neither 0 nor within 2 to %d", files, maxLogFiles))
	}
	if files != 0 && fileBytes == 0 {
		errs = append(errs, wrong(key+".log_files", "%d files of any size: set log_file_bytes, too", files))
	}
	return errors.Join(errs...)
}

func checkRuntime(key, runtime string) error {
	if runtime == ownRuntime {
		return nil
	}
	if command, ok := strings.CutPrefix(runtime, ociRuntime); ok {
		return path(key, command)
	}
	if shim, ok := strings.CutPrefix(runtime, shimRuntime); ok {
		if filepath.IsAbs(shim) {
			return path(key, shim)
		}
		if parts := strings.Split(shim, "."); len(parts) < 2 || slices.Contains(parts, "") || strings.ContainsAny(shim, "/\x00 ") {
			return wrong(key, "%q is neither an absolute path nor a name such as io.containerd.runc.v2", shim)
		}
		return nil
	}
	return wrong(key, "%q is none of coracle, oci:PATH, shim:NAME", runtime)
}
