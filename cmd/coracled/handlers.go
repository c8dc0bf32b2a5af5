package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/cri"
	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/oci/probe"
	"github.com/coracle-project/coracle/runtime/shimv2/locate"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

// podHandlers are the configured handlers as pods use them.
func podHandlers(c config.Runtime) map[string]podconfig.Handler {
	own := podconfig.Handler{LogLimit: logLimit(c.LogFileBytes, c.LogFiles)}
	out := map[string]podconfig.Handler{"": own}
	for _, name := range c.Handlers {
		out[name] = own
	}
	for name, h := range c.Handler {
		out[name] = podconfig.Handler{
			Runtime:                      runtimeOf(h),
			PrivilegedWithoutHostDevices: h.PrivilegedWithoutHostDevices,
			Annotations:                  h.Annotations,
			Overhead:                     overhead(h),
			LogLimit:                     logLimit(h.LogFileBytes, h.LogFiles),
			Snapshotter:                  snapshot.DriverName(h.Snapshotter),
		}
	}
	return out
}

// defaultLogFiles is how many files a log with a limit may have if the settings do not say; the
// kubelet's containerLogMaxFiles is the same.
const defaultLogFiles = 5

func logLimit(fileBytes int64, files int) client.LogLimit {
	if fileBytes == 0 {
		return client.LogLimit{}
	}
	if files == 0 {
		files = defaultLogFiles
	}
	return client.LogLimit{FileBytes: fileBytes, Files: files}
}

// runtimeOf is who makes a handler's containers, as the shim has it: no one but itself for our
// own runtime.
func runtimeOf(h config.Handler) string {
	if h.Runtime == "coracle" {
		return ""
	}
	return h.Runtime
}

// wantedSnapshotters are those that handlers ask for.
func wantedSnapshotters(c config.Runtime) []snapshot.DriverName {
	var out []snapshot.DriverName
	for _, h := range c.Handler {
		if h.Snapshotter != "" {
			out = append(out, snapshot.DriverName(h.Snapshotter))
		}
	}
	return out
}

// unpackFor brings an image's layers to where a handler's containers want them.
func (n *node) unpackFor(ctx context.Context, handler string, img *image.Image) error {
	h, ok := n.live.Load().pods[handler]
	if !ok {
		return fmt.Errorf("%w: runtime handler %q is not configured", errdefs.ErrInvalid, handler)
	}
	return n.layers.Bring(ctx, h.Snapshotter, img.Layers)
}

// overhead is nil if none is configured.
func overhead(h config.Handler) *podconfig.Resources {
	if h.OverheadCPUMillis == 0 && h.OverheadMemoryBytes == 0 {
		return nil
	}
	r := &podconfig.Resources{MemoryLimit: h.OverheadMemoryBytes}
	if h.OverheadCPUMillis > 0 {
		// As the kubelet converts them: 100 ms periods, 1024 shares for a CPU.
		const period, shares, millis = 100_000, 1024, 1000
		r.CPUPeriod, r.CPUQuota = period, h.OverheadCPUMillis*period/millis
		r.CPUShares = max(h.OverheadCPUMillis*shares/millis, 2)
	}
	return r
}

// handlers are all handlers with what they can do.
func (n *node) handlers(ctx context.Context, c config.Runtime) []cri.Handler {
	own := cri.Handler{RecursiveReadonly: recursiveReadonly(), UserNamespaces: n.userNamespaces(ctx, "")}
	out := []cri.Handler{own}
	configured := podHandlers(c)
	delete(configured, "")
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		h := own
		if by := configured[name].Runtime; by != "" {
			h = n.ask(ctx, name, by, own)
		}
		if driver := configured[name].Snapshotter; h.UserNamespaces && driver != "" {
			h.UserNamespaces = n.userNamespaces(ctx, driver)
		}
		h.Name = name
		out = append(out, h)
	}
	return out
}

// ask finds out what a handler's runtime can do of what the node can. One that does not say can
// do nothing; that it is missing is no reason not to start.
func (n *node) ask(ctx context.Context, name, by string, node cri.Handler) cri.Handler {
	command, ok := strings.CutPrefix(by, runtime.OCIHandler)
	if !ok {
		return cri.Handler{}
	}
	f, err := probe.Ask(ctx, command)
	if err != nil {
		n.log.Warn("cannot read the features of a runtime handler", "handler", name, "err", err)
	}
	return cri.Handler{
		RecursiveReadonly: node.RecursiveReadonly && f.RecursiveReadonly,
		UserNamespaces:    node.UserNamespaces && f.IDMap,
	}
}

// checkHandlers says which handlers have no program to run, for `coracled config check`.
func checkHandlers(c config.Runtime) []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Handler)) {
		var err error
		by := c.Handler[name].Runtime
		if command, ok := strings.CutPrefix(by, runtime.OCIHandler); ok {
			err = probe.Command(command)
		} else if shim, ok := strings.CutPrefix(by, runtime.ShimHandler); ok {
			_, err = locate.Program(shim)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("runtime.handler.%s.runtime: %w", name, err))
		}
	}
	return errs
}
