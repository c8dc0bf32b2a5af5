package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/validate"
	"github.com/coracle-project/coracle/runtime/zygote"
)

// undoTimeout bounds the cleaning up after a failed Create, which must not depend on the
// caller's context.
const undoTimeout = 10 * time.Second

// Create implements runtime.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (runtime.Container, error) {
	if err := runtime.ValidateID(id); err != nil {
		return nil, err // which quotes the id
	}
	if e.onlyLoad {
		return e.lc.Create(ctx, id, spec, opts)
	}
	if opts.NoPivot {
		e.allowNoPivot()
	}
	c, err := e.create(ctx, id, spec, opts)
	if errors.Is(err, plan.ErrUnsupported) {
		e.log.Debug("left to libcontainer", "container", id, "reason", err)
		return e.lc.Create(ctx, id, spec, opts)
	}
	if err != nil {
		return nil, wrap("create", id, err)
	}
	return c, nil
}

func (e *Engine) create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (*container, error) {
	if err := validate.SpecOnHostMounts(spec, opts.Bundle); err != nil {
		return nil, err
	}
	if spec.Linux == nil {
		bare := *spec
		bare.Linux = &specs.Linux{}
		spec = &bare
	}
	if err := needsUserNamespace(spec); err != nil {
		return nil, err
	}
	if e.alone && spec.Linux != nil && spec.Linux.Seccomp != nil {
		// Next to what comes before it is wanted: planOptions waits for it, and says what is wrong.
		go func() { _, _ = e.filters.Compile(spec.Linux.Seccomp) }()
	}
	watch := e.stopwatch("create " + id)
	watch.made = opts.Made
	cg, err := e.hierarchies.newCgroup(id, spec, opts)
	if err != nil {
		return nil, err
	}
	b := &birth{engine: e, id: id, spec: spec, opts: opts, cgroup: cg, watch: watch}
	b.watch.lap("find the cgroup")
	defer b.close()
	if err := b.prepare(); err != nil {
		return nil, err
	}
	b.watch.lap("plan")
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	self, err := base.Identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	c := e.container(&base.Record{
		Engine: Name, ID: id, Bundle: opts.Bundle, Annotations: spec.Annotations,
		Creator: self, Created: time.Now().UTC(),
		Cgroup: base.NameOf(cg.config), CgroupPaths: cg.paths(),
	})
	b.remember(c.Rec)
	if c.Rec.Resctrl, err = e.serviceClass(id, spec.Linux.IntelRdt); err != nil {
		return nil, err
	}
	if err := e.store.Claim(c.Rec); err != nil {
		return nil, err
	}
	b.watch.lap("record")
	if err := b.run(ctx, c); err != nil {
		return nil, errors.Join(err, b.undo(c))
	}
	b.watch.done()
	return c, nil
}

// birth is the making of one container.
type birth struct {
	engine *Engine
	id     string
	spec   *specs.Spec
	opts   runtime.CreateOptions
	cgroup *cgroup
	plan   *plan.Plan
	code   *plan.Code
	conv   *conversation
	mapper mapper
	open   files
	watch  stopwatch
}

// prepare makes the plan, and touches nothing but what it must look at.
func (b *birth) prepare() error {
	if err := b.terminal(); err != nil {
		return err
	}
	if _, err := b.engine.zygote(); err != nil {
		return err
	}
	if err := labelable(b.spec.Process, b.spec.Linux.MountLabel); err != nil {
		return err
	}
	b.engine.warnOfCapabilities(b.id, b.spec.Process)
	o, err := b.engine.planOptions(b.id, b.spec, &b.opts.Stdio)
	if err != nil {
		return err
	}
	o.NoNewKeyring, o.NoPivot = b.opts.NoNewKeyring, b.opts.NoPivot
	b.mapper = newMapper(b.spec.Linux)
	o.NoGroups = b.mapper.noGroups
	o.Bundle, o.Rootfs = b.opts.Bundle, b.rootfs()
	if !b.engine.features.MountSetattr {
		if o.RootFlags, err = mountFlags(o.Rootfs); err != nil {
			return err
		}
	}
	o.IsDir, o.Hide = isDir, b.engine.store.ContainerDir(b.id)
	o.Home = homeIn(o.Rootfs, b.spec.Process.User.UID)
	if o.Cgroup, err = b.cgroup.facts(b.spec, &b.engine.hierarchies); err != nil {
		return err
	}
	if b.plan, err = plan.Create(b.engine.withOOMScore(b.id, b.spec), o); err != nil {
		return invalidUnlessUnsupported(err)
	}
	b.engine.logSteps("create "+b.id, b.plan)
	if err := b.ahead(); err != nil {
		return err
	}
	b.code, err = b.watch.encode(b.plan, b.engine.features)
	return err
}

// ahead has a starter of this container alone make namespaces already: a network namespace
// takes the kernel as long as all of the container's mounts. Not below a user namespace, which has
// to own them, nor where the starter has another child to make first: one for the owners of files.
func (b *birth) ahead() error {
	if slices.ContainsFunc(b.plan.Opens, func(o plan.Open) bool { return o.Tree != nil && o.Tree.IDMap != nil }) {
		return nil
	}
	ns := b.plan.Namespaces & (unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if !b.engine.alone || ns == 0 || b.plan.Namespaces&unix.CLONE_NEWUSER != 0 || rootless() {
		return nil
	}
	z, err := b.engine.zygote()
	if err != nil {
		return err
	}
	return z.Ahead(ns)
}

func (b *birth) terminal() error {
	if b.spec.Process.Terminal && b.opts.Stdio.Console == nil {
		return errors.New("process.terminal is set but there is no console socket to send the terminal to")
	}
	return nil
}

func invalidUnlessUnsupported(err error) error {
	if errors.Is(err, plan.ErrUnsupported) || errors.Is(err, runtime.ErrInvalidSpec) {
		return err
	}
	return fmt.Errorf("%w: %w", runtime.ErrInvalidSpec, err)
}

func isDir(path string) (bool, error) {
	st, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	return st.IsDir(), nil
}

// run makes the container and records its init.
func (b *birth) run(ctx context.Context, c *container) error {
	if err := base.FaultCreateClaimed.At(ctx); err != nil {
		return err
	}
	if err := b.cgroup.make(); err != nil {
		return err
	}
	if err := faultCreateCgroup.At(ctx); err != nil {
		return err
	}
	if c.Rec.Resctrl != nil {
		if err := c.Rec.Resctrl.Make(b.spec.Linux.IntelRdt); err != nil {
			return err
		}
	}
	gate, err := makeGate(c.Gate)
	if err != nil {
		return err
	}
	b.open.add(gate)
	if err := faultCreateGated.At(ctx); err != nil {
		return err
	}
	b.watch.lap("make the cgroup")
	b.conv, err = b.watch.conversation(b.plan, b.engine.patience.Idle)
	if err != nil {
		return err
	}
	fds, cgroupFd, err := b.descriptors(gate)
	if err != nil {
		return err
	}
	b.watch.lap("open what the plan needs")
	pid, err := b.engine.clone(b.code, b.plan.Namespaces, cgroupFd, fds)
	b.engine.retire()
	b.open.close()
	if errors.Is(err, zygote.ErrLost) {
		err = errors.Join(err, b.conv.endLost())
	}
	b.conv.closeChildEnd()
	if err != nil {
		return err
	}
	b.watch.lap("clone")
	if err := b.talk(ctx, c, pid); err != nil {
		return err
	}
	b.watch.lap("the plan")
	if err := base.FaultCreateBuilt.At(ctx); err != nil {
		return err
	}
	err = c.Rec.Write(c.Dir())
	b.watch.lap("record")
	return err
}

// talk does what the child asks for until it is complete.
func (b *birth) talk(ctx context.Context, c *container, pid int) error {
	c.Rec.Init.Pid = pid
	b.conv.with(pid)
	if err := faultCreateCloned.At(ctx); err != nil {
		return err
	}
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(killed); b.conv.kill() })
	err := b.listen(ctx, c)
	if !stop() {
		<-killed
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return err
	}
	c.Rec.Init, err = base.Identify(c.Rec.Init.Pid)
	return err
}

func (b *birth) listen(ctx context.Context, c *container) error {
	on := b.reports(ctx, c)
	for {
		switch kind, err := b.conv.handle(on); {
		case kind == 0:
			return fmt.Errorf("the process died while the container was being made: %w", err)
		case err != nil:
			return err
		case kind == plan.ReportCreated:
			return nil
		}
	}
}

// reports says what is done about what the child reports.
func (b *birth) reports(ctx context.Context, c *container) reports {
	return reports{
		plan.ReportError: func(arg int, errno unix.Errno) error { return b.plan.Fail(b.code, arg, errno) },
		plan.ReportTrace: func(int, unix.Errno) error { b.watch.inside = b.plan.Steps(b.conv.rest); return nil },
		plan.ReportProcess: func(pid int, _ unix.Errno) error {
			if err := b.conv.reapFirst(); err != nil {
				b.engine.log.Warn("process that created the container has not ended", "container", b.id, "err", err)
			}
			c.Rec.Init.Pid = pid
			return nil
		},
		plan.ReportCopyUp: func(arg int, errno unix.Errno) error { return copyUp(ctx, c.Rec.Init.Pid, arg, int(errno)) },
		plan.ReportTarget: func(arg int, errno unix.Errno) error { return b.makeTarget(c.Rec.Init.Pid, arg, int(errno)) },
		plan.ReportPoint:  func(arg int, _ unix.Errno) error { return b.at(ctx, c, plan.Point(arg)) },
		plan.ReportListener: func(fd int, _ unix.Errno) error {
			l := listener{b.spec.Linux.Seccomp.ListenerPath, b.spec.Linux.Seccomp.ListenerMetadata}
			return l.hand(c.Rec.Init.Pid, fd, c.StateAs(specs.StateCreating).State)
		},
		plan.ReportCreated: func(int, unix.Errno) error {
			if c.Rec.Resctrl == nil {
				return nil
			}
			return c.Rec.Resctrl.Add(c.Rec.Init.Pid)
		},
	}
}

// at does what is due at a point of the plan.
func (b *birth) at(ctx context.Context, c *container, p plan.Point) error {
	switch p {
	case plan.PointMappings:
		if err := b.mapper.write(c.Rec.Init.Pid, b.plan.Mappings); err != nil {
			return err
		}
		// Beyond its own user namespace the child has no rights.
		if err := b.raiseLimits(c.Rec.Init.Pid); err != nil {
			return err
		}
		return writeOOMScore(c.Rec.Init.Pid, b.engine.withOOMScore(b.id, b.spec).Process.OOMScoreAdj)
	case plan.PointTime:
		return writeTimeOffsets(c.Rec.Init.Pid, b.spec.Linux.TimeOffsets)
	case plan.PointCgroup:
		return b.cgroup.enter(c.Rec.Init.Pid)
	case plan.PointNetwork:
		return moveDevices(b.spec.Linux.NetDevices, c.Rec.Init.Pid)
	case plan.PointHooks:
		var err error
		if c.Rec.Init, err = base.Identify(c.Rec.Init.Pid); err != nil {
			return err
		}
		//lint:ignore SA1019 prestart is deprecated but still part of the spec
		if err := c.RunHooks(ctx, "prestart", b.spec.Hooks.Prestart, specs.StateCreating); err != nil {
			return err
		}
		if err := c.RunHooks(ctx, "createRuntime", b.spec.Hooks.CreateRuntime, specs.StateCreating); err != nil {
			return err
		}
		return b.containerHooks(ctx, c)
	}
	return fmt.Errorf("the plan stops at an unknown point %d", p)
}

func (b *birth) close() {
	b.open.close()
	b.engine.retire()
	if b.conv != nil {
		b.conv.close()
	}
}

// undo removes what a failed run left.
func (b *birth) undo(c *container) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	var left error
	if b.conv != nil {
		left = b.conv.end(undoTimeout)
	}
	c.Rec.Init = base.Process{}
	return errors.Join(left, c.Remove(ctx))
}

// makeGate makes the FIFO at which the child waits for Start.
func makeGate(path string) (int, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return -1, fmt.Errorf("make %s: %w", path, err)
	}
	// For reading and writing, so that opening waits for no one and reading never ends.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}
