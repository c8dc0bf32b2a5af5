package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/shim/client"
)

// initPath is where a pod's init finds its program, and its args[0], by which the
// shim's binary knows what it is to be.
const initPath = "/coracle-pod-init"

// startInit runs the pod's init, which holds the PID namespace that the pod's
// containers share: the shim's own binary in an otherwise empty root, without any
// privilege. It goes by the pod's id in the shim.
func (m *Manager) startInit(ctx context.Context, e *entry[podRecord], set nspin.Set, hostname string) (pid int, err error) {
	c := &e.get().Config
	bundle := filepath.Join(m.podDir().Of(e.id), "init")
	root := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(root, initPath), nil, 0o755); err != nil {
		return 0, err
	}
	spec := ocispec.PodInit(ocispec.Init{
		Root: root, Path: initPath, Binary: m.opts.ShimBinary,
		Namespaces:  ocispec.Namespaces{Net: set.Net, IPC: set.IPC, UTS: set.UTS, HostNet: c.hostNetwork(), HostIPC: c.hostIPC()},
		CgroupsPath: m.cgroupsPath(c, e.id),
		Identity:    ocispec.Identity{PodID: e.id, PodName: c.Name, PodNamespace: c.Namespace, PodUID: c.UID},
	})
	if err := ocispec.Write(bundle, spec); err != nil {
		return 0, err
	}
	pid, err = m.Shim.Create(ctx, client.CreateRequest{PodID: e.id, ID: e.id, Bundle: bundle})
	if err != nil {
		return 0, err
	}
	return pid, m.Shim.StartContainer(ctx, e.id, e.id)
}

// endInit kills the pod's init and has the shim forget it. It succeeds if there is none.
func (m *Manager) endInit(ctx context.Context, e *entry[podRecord]) error {
	over := m.exits.of(e.id, func() bool { return false })
	err := m.Shim.Kill(ctx, client.KillRequest{PodID: e.id, ID: e.id, Signal: syscall.SIGKILL})
	switch {
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrNotRunning):
		m.exits.happened(e.id)
	case err != nil:
		return err
	default:
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return m.forget(ctx, e.id, e.id)
}
