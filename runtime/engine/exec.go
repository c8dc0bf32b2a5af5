package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/stuck"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/validate"
	"github.com/coracle-project/coracle/runtime/zygote"
)

// Exec implements runtime.Container. A paused container counts as not running: its new
// process would be frozen too, half made.
func (c *container) Exec(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (int, error) {
	pid, err := c.exec(ctx, p, opts)
	if err != nil {
		return 0, c.Fail("exec in", err)
	}
	return pid, nil
}

func (c *container) exec(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (int, error) {
	if err := validate.Process(p); err != nil {
		return 0, err
	}
	if p.Terminal && opts.Stdio.Console == nil {
		return 0, errors.New("process.terminal is set but there is no console socket to send the terminal to")
	}
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	if err := c.MayExec(opts); err != nil {
		return 0, err
	}
	return c.join(ctx, p, opts)
}

// join starts a process in a container whose init is past its gate, or waits at it.
func (c *container) join(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (int, error) {
	return c.joinAs(ctx, p, "", opts)
}

// joinAs is join with a program other than the process's first argument, unless it is "".
func (c *container) joinAs(ctx context.Context, p *specs.Process, program string, opts runtime.ExecOptions) (int, error) {
	pidfd, err := unix.PidfdOpen(c.Rec.Init.Pid, 0)
	if err != nil {
		return 0, runtime.ErrNotRunning
	}
	defer unix.Close(pidfd)
	if !c.Rec.Init.Alive() { // the number may be another's now
		return 0, runtime.ErrNotRunning
	}
	e := &entry{container: c, process: p, program: program, opts: opts, watch: c.engine.stopwatch("exec in " + c.ID())}
	defer e.open.close()
	if err := e.prepare(pidfd); err != nil {
		return 0, err
	}
	e.watch.lap("plan")
	pid, err := e.run(ctx, pidfd)
	e.watch.done()
	if err != nil && !c.Rec.Init.Alive() {
		err = fmt.Errorf("%w: it ended meanwhile: %w", runtime.ErrNotRunning, err)
	}
	return pid, err
}

// entry is the making of one further process.
type entry struct {
	container *container
	process   *specs.Process
	program   string // see joinAs
	opts      runtime.ExecOptions
	plan      *plan.Plan
	code      *plan.Code
	unified   string // the cgroup to be cloned into, "" if there is none
	attach    bool   // systemd moves it into its cgroup
	open      files
	watch     stopwatch
}

// prepare makes the plan. pidfd is of the container's init.
func (e *entry) prepare(pidfd int) error {
	c := e.container
	own, err := c.own()
	if err != nil {
		return err
	}
	if own.NoPivot {
		c.engine.allowNoPivot()
	}
	spec := &specs.Spec{Linux: &specs.Linux{MemoryPolicy: own.MemoryPolicy}, Process: e.process}
	if own.Personality != "" {
		spec.Linux.Personality = &specs.LinuxPersonality{Domain: own.Personality}
	}
	if err := labelable(e.process, ""); err != nil {
		return err
	}
	c.engine.warnOfCapabilities(c.ID(), e.process)
	o, err := c.engine.planOptions(c.ID(), spec, &e.opts.Stdio)
	if err != nil {
		return err
	}
	o.Program = e.program
	o.Seccomp, o.NoNewKeyring, o.NoGroups = own.filter(), own.NoNewKeyring, own.NoGroups
	if !slices.ContainsFunc(e.process.Env, func(v string) bool { return strings.HasPrefix(v, "HOME=") && v != "HOME=" }) {
		if o.Home, err = c.home(pidfd, e.process.User.UID); err != nil {
			return err
		}
	}
	if o.Cgroup.Tasks, e.unified, err = c.cgroups(e.opts.Cgroups); err != nil {
		return err
	}
	if e.attach = c.Rec.Cgroup.Systemd && rootless(); e.attach {
		// No other process may move it out of the caller's cgroup.
		o.Cgroup, e.unified = plan.Cgroup{}, ""
	}
	o.Cgroup.Wait = e.attach || c.Rec.Resctrl != nil
	spec = c.engine.withOOMScore(c.ID(), spec)
	if p := *spec.Process; p.ExecCPUAffinity == nil && own.Affinity != nil {
		p.ExecCPUAffinity = own.Affinity
		spec = &specs.Spec{Linux: spec.Linux, Process: &p}
	}
	if e.plan, err = plan.Exec(spec, spec.Process, own.Namespaces, o); err != nil {
		return invalidUnlessUnsupported(err)
	}
	c.engine.logSteps("exec in "+c.ID(), e.plan)
	e.code, err = e.watch.encode(e.plan, c.engine.features)
	return err
}

// home is the home directory of a user in the root of init, which is opened by init's number. Init
// has not been reaped after that, so the number was its own, and not of a process that came later.
func (c *container) home(pidfd int, uid uint32) (string, error) {
	home := homeIn(fmt.Sprintf("/proc/%d/root", c.Rec.Init.Pid), uid)
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil {
		return "", fmt.Errorf("%w: look at init: pidfd_send_signal: %w", runtime.ErrNotRunning, err)
	}
	return home, nil
}

// cgroups are where a process of the container belongs: the container's, or those below that
// the caller names.
func (c *container) cgroups(below map[string]string) (tasks []string, unified string, err error) {
	for controller := range below {
		if _, has := c.Rec.CgroupPaths[controller]; !has && controller != "" {
			return nil, "", fmt.Errorf("unknown controller %q: the container has no cgroup of it", controller)
		}
		if slices.Contains(strings.Split(below[controller], "/"), "..") {
			return nil, "", fmt.Errorf("bad sub cgroup path %q: it has to be below the container's", below[controller])
		}
	}
	paths := make(map[string]string, len(c.Rec.CgroupPaths))
	for controller, dir := range c.Rec.CgroupPaths {
		sub, named := below[controller]
		if !named && len(below) == 1 {
			sub = below[""]
		}
		paths[controller] = filepath.Join(dir, filepath.Clean("/"+sub))
	}
	return taskFiles(paths), paths[""], nil
}

func (e *entry) run(ctx context.Context, pidfd int) (int, error) {
	conv, err := e.watch.conversation(e.plan, e.container.engine.patience.Idle)
	if err != nil {
		return 0, err
	}
	defer conv.close()
	opener := &opener{engine: e.container.engine, stdio: &e.opts.Stdio, open: &e.open, given: map[string]int{
		plan.FdSync: conv.childs, plan.FdContainer: pidfd,
	}}
	fds, err := opener.all(e.plan)
	if err != nil {
		return 0, err
	}
	e.watch.lap("open what the plan needs")
	pid, err := e.clone(fds)
	if errors.Is(err, zygote.ErrLost) {
		err = errors.Join(err, conv.endLost())
	}
	conv.closeChildEnd()
	if err != nil {
		return 0, err
	}
	e.watch.lap("clone")
	conv.with(pid)
	pid, err = e.listen(ctx, conv, pid)
	e.watch.lap("the plan")
	return pid, err
}

// hand gives the seccomp agent its descriptor.
func (e *entry) hand(pid, fd int) error {
	own, err := e.container.own()
	if err != nil {
		return err
	}
	return own.Listener.hand(pid, fd, e.container.StateAs(specs.StateRunning).State)
}

// schedule gives the process its scheduler.
func (e *entry) schedule(pid int) error {
	if pid == 0 { // to sched_setattr it is the caller
		return errors.New("the process asks for its scheduler before it is in the container")
	}
	attr, err := plan.SchedAttr(*e.process.Scheduler)
	if err != nil {
		return err
	}
	if err := unix.SchedSetAttr(pid, attr, 0); err != nil {
		return fmt.Errorf("set scheduling policy %s: sched_setattr: %w", e.process.Scheduler.Policy, err)
	}
	return nil
}

// enter has systemd move a process into the container's cgroup, or one below it, and moves it into
// its class of service.
func (e *entry) enter(pid int) error {
	if r := e.container.Rec.Resctrl; r != nil {
		if err := r.Add(pid); err != nil {
			return err
		}
	}
	if !e.attach {
		return nil
	}
	m, err := e.container.Rec.CgroupManager()
	if err != nil {
		return err
	}
	return m.AddPid(e.opts.Cgroups[""], pid)
}

// listen follows the process from the one that joins the container (first) to the one that is
// in it, until that executes its program: then no one has the socket any more.
func (e *entry) listen(ctx context.Context, conv *conversation, first int) (int, error) {
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(killed); conv.kill() })
	pid, err := e.follow(conv, first)
	if !stop() {
		<-killed
		err = errors.Join(context.Cause(ctx), err)
	}
	if err == nil && pid == 0 {
		err = errors.New("the process died while it joined the container")
	}
	if err != nil {
		return 0, errors.Join(err, conv.end(stuck.Patience))
	}
	// A joining process that remains holds nothing that the program needs.
	if err := conv.reapFirst(); err != nil {
		e.container.engine.log.Warn("process that joined the container has not ended", "container", e.container.ID(), "err", err)
	}
	return pid, nil
}

func (e *entry) follow(conv *conversation, first int) (pid int, failed error) {
	on := reports{
		plan.ReportError:   func(arg int, errno unix.Errno) error { failed = e.plan.Fail(e.code, arg, errno); return nil },
		plan.ReportTrace:   func(int, unix.Errno) error { e.watch.inside = e.plan.Steps(conv.rest); return nil },
		plan.ReportProcess: func(arg int, _ unix.Errno) error { pid = arg; return nil },
		plan.ReportPoint: func(arg int, _ unix.Errno) error {
			if plan.Point(arg) == plan.PointScheduler {
				return e.schedule(pid)
			}
			return e.enter(first)
		},
		plan.ReportListener: func(fd int, _ unix.Errno) error { return e.hand(pid, fd) },
	}
	for {
		switch kind, err := conv.handle(on); {
		case kind == 0 && errors.Is(err, io.ErrUnexpectedEOF):
			return pid, failed
		case kind == 0:
			return pid, errors.Join(failed, err)
		case err != nil:
			failed = err
			conv.kill()
		}
	}
}
