package shimv2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/internal/bundle"
	"github.com/coracle-project/coracle/runtime/shimv2/locate"
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
	name, rec, err := bundle.Begin(Name, runtime.ShimHandler, id, spec, opts)
	if err != nil {
		return nil, err
	}
	program, err := locate.Program(name)
	if err != nil {
		return nil, err
	}
	stdio, err := fifosOf(opts.Stdio)
	if err != nil {
		return nil, err
	}
	o := own{Program: program, Group: groupOf(id, spec)}
	if rec.Own, err = json.Marshal(o); err != nil {
		return nil, err
	}
	if err := e.events.listen(e.rootDir, e.noteOOM); err != nil {
		return nil, err
	}
	e.live(id)
	if err := e.store.Claim(rec); err != nil {
		return nil, err
	}
	c := e.container(rec, o)
	if err := c.build(ctx, spec, opts, stdio); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return nil, errors.Join(err, c.removeAlone(undo))
	}
	return c, nil
}

// build has the shim make the container, and notes its init.
func (c *container) build(ctx context.Context, spec *specs.Spec, opts runtime.CreateOptions, stdio fifos) error {
	dir := c.engine.bundleDir(c.ID())
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	if err := bundle.Write(dir, spec, opts.Bundle, bundle.OOMScore(c.Store, c.ID(), spec)); err != nil {
		return err
	}
	group, err := c.engine.takeGroup(ctx, &c.own)
	if err != nil {
		return err
	}
	defer group.give()
	if err := faultShimStart.At(ctx); err != nil {
		return err
	}
	if err := c.engine.begin(ctx, &c.own, c.ID()); err != nil {
		return err
	}
	if err := c.note(); err != nil {
		return err
	}
	if err := faultShimStarted.At(ctx); err != nil {
		return err
	}
	options, err := c.options(opts)
	if err != nil {
		return err
	}
	var res task.CreateTaskResponse
	if err := c.call(ctx, "Create", &task.CreateTaskRequest{
		ID: c.ID(), Bundle: dir, Terminal: spec.Process.Terminal, Options: options,
		Stdin: stdio.stdin, Stdout: stdio.stdout, Stderr: stdio.stderr,
	}, &res); err != nil {
		return err
	}
	if c.Rec.Init, err = base.Identify(int(res.Pid)); err != nil {
		return err
	}
	if err := faultShimCreated.At(ctx); err != nil {
		return err
	}
	return c.note()
}

// note writes down what is known by now.
func (c *container) note() (err error) {
	if c.Rec.Own, err = json.Marshal(c.own); err != nil {
		return err
	}
	return c.Rec.Write(c.Dir())
}

// options are those of containerd's own shim. Others have options of their own, and take none
// for their defaults.
func (c *container) options(opts runtime.CreateOptions) (*anypb.Any, error) {
	if filepath.Base(c.own.Program) != "containerd-shim-runc-v2" {
		return nil, nil
	}
	o := &options.Options{
		SystemdCgroup: opts.SystemdCgroup, NoPivotRoot: opts.NoPivot, NoNewKeyring: opts.NoNewKeyring,
		Root: filepath.Join(c.engine.rootDir, "runc"),
	}
	b, err := proto.Marshal(o)
	return &anypb.Any{TypeUrl: string(o.ProtoReflect().Descriptor().FullName()), Value: b}, err
}

// fifos are the paths of a process's streams.
type fifos struct{ stdin, stdout, stderr string }

// fifosOf finds the names of the FIFOs that a process is to have: a shim opens them itself.
func fifosOf(s runtime.Stdio) (out fifos, err error) {
	if s.Console != nil || len(s.Files) > 0 {
		return out, fmt.Errorf("%w: a shim makes the terminal itself, and passes no descriptors on", runtime.ErrUnsupported)
	}
	for _, one := range []struct {
		f    *os.File
		path *string
	}{{s.Stdin, &out.stdin}, {s.Stdout, &out.stdout}, {s.Stderr, &out.stderr}} {
		if one.f == nil {
			continue
		}
		st, err := one.f.Stat()
		if err != nil {
			return out, err
		}
		path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(one.f.Fd())))
		if err != nil {
			return out, err
		}
		if st.Mode()&os.ModeNamedPipe == 0 || !filepath.IsAbs(path) {
			return out, fmt.Errorf("%w: %s is not a FIFO, and a shim takes nothing else", runtime.ErrUnsupported, path)
		}
		*one.path = path
	}
	// containerd's shim wants both outputs or no streams at all.
	if out != (fifos{}) {
		for _, path := range []*string{&out.stdout, &out.stderr} {
			if *path == "" {
				*path = os.DevNull
			}
		}
	}
	return out, nil
}
