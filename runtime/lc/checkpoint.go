package lc

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// Checkpoint and Restore execute criu(8), which libcontainer looks for in PATH.

var (
	_ runtime.Checkpointer = (*container)(nil)
	_ runtime.Restorer     = (*Engine)(nil)
)

// Checkpoint implements runtime.Checkpointer.
func (c *container) Checkpoint(_ context.Context, opts runtime.CheckpointOptions) error {
	if err := c.checkpoint(opts); err != nil {
		return c.Fail("checkpoint", err)
	}
	return nil
}

func (c *container) checkpoint(opts runtime.CheckpointOptions) error {
	criu, err := criuOptions(opts.ImageOptions)
	if err != nil {
		return err
	}
	criu.ParentImage = opts.ParentDir
	criu.LeaveRunning, criu.PreDump = opts.LeaveRunning, opts.PreDump
	criu.TcpSkipInFlight, criu.LinkRemap = opts.TCPSkipInFlight, opts.LinkRemap
	criu.StatusFd = opts.StatusFD
	if criu.PageServer, err = pageServer(opts.PageServer); err != nil {
		return err
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status != specs.StateRunning && status != runtime.StatusPaused {
		return fmt.Errorf("%w: it is %s", runtime.ErrNotRunning, status)
	}
	lib, err := libcontainer.Load(c.Dir(), c.Rec.ID)
	if err != nil {
		return err
	}
	log := dumpLog(opts.ImageOptions)
	return log.explain(lib.Checkpoint(criu))
}

// Restore implements runtime.Restorer.
func (e *Engine) Restore(ctx context.Context, id string, spec *specs.Spec, create runtime.CreateOptions,
	opts runtime.RestoreOptions,
) (runtime.Container, error) {
	c, err := e.restore(ctx, id, spec, create, opts)
	if err != nil {
		return nil, fmt.Errorf("restore container %s: %w", id, err)
	}
	return c, nil
}

func (e *Engine) restore(ctx context.Context, id string, spec *specs.Spec, create runtime.CreateOptions,
	opts runtime.RestoreOptions,
) (*container, error) {
	criu, err := criuOptions(opts.ImageOptions)
	if err != nil {
		return nil, err
	}
	criu.LsmProfile, criu.LsmMountContext = opts.LSMProfile, opts.LSMMountContext
	if _, err := os.Stat(opts.ImageDir); err != nil {
		return nil, err
	}
	return e.create(ctx, id, spec, create, func(lib *libcontainer.Container, init *libcontainer.Process) error {
		log := restoreLog(opts.ImageOptions)
		return log.explain(lib.Restore(init, criu))
	})
}

func criuOptions(o runtime.ImageOptions) (*libcontainer.CriuOpts, error) {
	switch o.CgroupMode {
	case "", "soft", "full", "strict", "ignore":
	default:
		return nil, fmt.Errorf("cgroup mode %q is unknown, use soft, full, strict or ignore", o.CgroupMode)
	}
	return &libcontainer.CriuOpts{
		ImagesDirectory: o.ImageDir, WorkDirectory: o.WorkDir,
		TcpEstablished: o.TCPEstablished, ExternalUnixConnections: o.ExternalUnixSockets,
		FileLocks: o.FileLocks, ShellJob: o.ShellJob,
		ManageCgroupsMode: o.CgroupMode, AutoDedup: o.AutoDedup, LazyPages: o.LazyPages,
		StatusFd: -1,
		// Devices, addresses and routes are whose business it was to make them.
		EmptyNs: unix.CLONE_NEWNET,
	}, nil
}

func pageServer(address string) (libcontainer.CriuPageServerInfo, error) {
	var out libcontainer.CriuPageServerInfo
	if address == "" {
		return out, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return out, fmt.Errorf("page server %q is not of the form ADDRESS:PORT", address)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return out, fmt.Errorf("page server %q: port %q is out of range, use 1 to 65535", address, port)
	}
	out.Address, out.Port = host, int32(n)
	return out, nil
}
