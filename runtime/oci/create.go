package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/internal/bundle"
	"github.com/coracle-project/coracle/runtime/oci/probe"
)

// undoTimeout bounds the cleaning up after a failed Create, which must not depend on the
// caller's context.
const undoTimeout = 10 * time.Second

// Create implements runtime.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (runtime.Container, error) {
	c, err := e.create(ctx, id, spec, opts)
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", id, err)
	}
	return c, nil
}

func (e *Engine) create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (*container, error) {
	path, rec, err := bundle.Begin(Name, runtime.OCIHandler, id, spec, opts)
	if err != nil {
		return nil, err
	}
	if err := probe.Command(path); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	o := own{Command: path, SystemdCgroup: opts.SystemdCgroup}
	if rec.Own, err = json.Marshal(o); err != nil {
		return nil, err
	}
	if err := e.orphans.watch(); err != nil {
		return nil, err
	}
	c := e.container(rec, o)
	if err := e.store.Claim(rec); err != nil {
		return nil, err
	}
	if err := c.build(ctx, spec, opts); err != nil {
		return nil, errors.Join(err, c.undo())
	}
	return c, nil
}

// build has the command make the container, and notes its init.
func (c *container) build(ctx context.Context, spec *specs.Spec, opts runtime.CreateOptions) error {
	if err := bundle.Write(c.bundle(), spec, opts.Bundle, bundle.OOMScore(c.Store, c.ID(), spec)); err != nil {
		return err
	}
	if err := os.WriteFile(c.Gate, nil, 0o600); err != nil {
		return err
	}
	k, err := c.newCommand()
	if err != nil {
		return err
	}
	defer k.close()
	if err := os.MkdirAll(k.root, 0o700); err != nil {
		return err
	}
	args := []string{"create", "--bundle", c.bundle(), "--pid-file", k.file("pid")}
	if opts.NoPivot {
		args = append(args, "--no-pivot")
	}
	if opts.NoNewKeyring {
		args = append(args, "--no-new-keyring")
	}
	if err := faultOciCreate.At(ctx); err != nil {
		return err
	}
	c.Rec.Init, err = k.start(ctx, opts.Stdio, args, c.ID())
	if err != nil {
		return err
	}
	if err := faultOciCreated.At(ctx); err != nil {
		return err
	}
	if c.Rec.CgroupPaths == nil {
		if c.Rec.CgroupPaths, err = cgroupsOf(c.Rec.Init.Pid); err != nil {
			return err
		}
	}
	return c.Rec.Write(c.Dir())
}

// start runs create or exec with a process's streams, and returns the process, which is a
// child of ours from now on.
func (k *command) start(ctx context.Context, stdio runtime.Stdio, args []string, id string) (base.Process, error) {
	k.stdio, k.starts = stdio, true
	var terminal *consoleSocket
	if stdio.Console != nil {
		k.stdio = runtime.Stdio{Files: stdio.Files}
		var err error
		if terminal, err = listenConsole(k.dir); err != nil {
			return base.Process{}, err
		}
		defer terminal.close()
		args = append(args, "--console-socket", terminal.path())
	}
	if n := len(stdio.Files); n > 0 {
		args = append(args, "--preserve-fds", strconv.Itoa(n))
	}
	if _, err := k.run(ctx, append(args, id)...); err != nil {
		k.reapLeft()
		return base.Process{}, err
	}
	p, err := k.pid()
	if err == nil && terminal != nil {
		err = terminal.forward(ctx, stdio.Console)
	}
	return p, err
}

// pid reads the file that the command was asked to write.
func (k *command) pid() (base.Process, error) {
	b, err := readSmall(k.file("pid"))
	if err != nil {
		return base.Process{}, fmt.Errorf("%s wrote no pid file: %w", k.path, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return base.Process{}, fmt.Errorf("%s wrote %q as a pid", k.path, b)
	}
	return base.Identify(pid)
}

func (c *container) bundle() string { return filepath.Join(c.Dir(), "bundle") }

// cgroupsOf are the cgroups that a process is in, by controller on version 1; the unified
// hierarchy is "".
func cgroupsOf(pid int) (map[string]string, error) {
	in, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	if cgroups.IsCgroup2UnifiedMode() {
		return map[string]string{"": filepath.Join("/sys/fs/cgroup", in[""])}, nil
	}
	out := make(map[string]string, len(in))
	for controller, path := range in {
		if controller == "" {
			continue
		}
		mount, root, err := cgroups.FindCgroupMountpointAndRoot("", controller)
		if err != nil {
			continue // a hierarchy that is mounted nowhere
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return nil, fmt.Errorf("find cgroups: %w", err)
		}
		out[controller] = filepath.Join(mount, rel)
	}
	return out, nil
}

// undo removes what a failed creation has left.
func (c *container) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	err := c.remove(ctx)
	reap(c.Rec.Init)
	return err
}
