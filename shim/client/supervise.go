package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
	"github.com/coracle-project/coracle/shim/sock"
)

// ensure makes the keeper supervise l's shim: it adopts a running shim, or starts one. In either
// case the keeper gets the current command line, so that the next shim runs the upgraded program.
func (c *Client) ensure(ctx context.Context, l *link) error {
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	k, err := c.keeperFor(ctx, l)
	if err != nil {
		return err
	}
	_, err = k.Who(l.program())
	switch {
	case errors.Is(err, keeper.ErrNotFound):
		err = c.adoptOrStart(ctx, k, l)
	case err == nil && misplaced(k, l):
		l.log.Warn("replacing shim whose socket was replaced")
		err = c.renew(ctx, k, l, false)
	case err == nil:
		err = c.supervise(k, l, nil)
	}
	if err != nil {
		return fmt.Errorf("shim %s: %w", l.name, err)
	}
	return nil
}

// repair replaces a shim whose socket is gone or was replaced. The shim's socket cannot be bound to
// a name a second time. lost means that nothing listened on the socket when the caller tried.
// ensure may have made the socket while repair waited for the lock; the shim on it must not be
// killed.
func (c *Client) repair(ctx context.Context, l *link, lost bool) error {
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	k, err := c.keeperFor(ctx, l)
	if err != nil {
		return err
	}
	if lost {
		conn, err := l.connect()
		if err == nil {
			return conn.Close()
		}
		if !unreachable(err) {
			return err
		}
	}
	if err := c.renew(ctx, k, l, false); err != nil {
		return fmt.Errorf("repair shim %s: %w", l.name, err)
	}
	l.log.Warn("shim was replaced: its socket was gone or was replaced")
	return nil
}

// replace ends a shim that does not answer and starts the next one. silent is the pid that did not
// answer: another process may have taken its place while replace waited for the lock.
func (c *Client) replace(ctx context.Context, l *link, silent int) error {
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	k, err := c.keeperFor(ctx, l)
	if err != nil {
		return err
	}
	if pid, err := k.Who(l.program()); err == nil && pid != silent {
		return nil
	}
	l.log.Warn("replacing shim that does not answer", "pings", l.limits.replace)
	if err := c.renew(ctx, k, l, true); err != nil {
		return fmt.Errorf("replace shim %s: %w", l.name, err)
	}
	return nil
}

// keeperFor returns the keeper while l is in use. The caller holds c.keeper.starting.
func (c *Client) keeperFor(ctx context.Context, l *link) (*keeper.Keeper, error) {
	k := c.keeper.get()
	if k == nil || ctx.Err() != nil || l.ended() {
		return nil, fmt.Errorf("shim %s: %w", l.name, ErrUnavailable)
	}
	return k, nil
}

// adoptOrStart makes a keeper supervise a shim that it does not know.
func (c *Client) adoptOrStart(ctx context.Context, k *keeper.Keeper, l *link) error {
	if p := running(ctx, l); p != nil {
		defer p.f.Close()
		return c.supervise(k, l, p)
	}
	if err := makeListener(k, l.dir, sock.Shim, l.program()); err != nil {
		return err
	}
	return c.supervise(k, l, nil)
}

// renewals is how often renew makes a listener in place of one whose name was taken.
const renewals = 3

// renew makes a new listener, ends the processes that may still serve the old one, and starts a
// shim on the new one. dump asks for their stacks.
//
// One of these processes may have started just now, without a listener, and have made its own after
// ours. Then the name leads nowhere when it has ended, and only this program repairs that: the
// daemon of an earlier release waits for ever.
func (c *Client) renew(ctx context.Context, k *keeper.Keeper, l *link, dump bool) error {
	for range renewals {
		if err := c.renewOnce(ctx, k, l, dump); err != nil {
			return err
		}
		if !misplaced(k, l) {
			return nil
		}
	}
	return fmt.Errorf("socket %s: its name was taken %d times", sock.Shim, renewals)
}

func (c *Client) renewOnce(ctx context.Context, k *keeper.Keeper, l *link, dump bool) error {
	if err := makeListener(k, l.dir, sock.Shim, l.program()); err != nil {
		return err
	}
	before, _ := l.dialed()
	_, err := k.Who(l.program())
	known := err == nil
	if known { // the keeper starts the next shim by itself
		if err := c.supervise(k, l, nil); err != nil {
			return err
		}
	}
	old := processes(k, l)
	defer closeProcesses(old)
	for _, p := range old {
		if err := c.kill(ctx, l, p, dump); err != nil {
			return err
		}
	}
	// It may have led to another process: any process could have taken the socket's name. The
	// connection that there is now may be the next shim's, with calls under way.
	if before != nil {
		before.Close()
	}
	if known {
		return nil
	}
	return c.supervise(k, l, nil)
}

// kill ends a shim. Its containers keep running, and the next shim adopts them.
func (c *Client) kill(ctx context.Context, l *link, p *process, dump bool) error {
	if dump {
		saved, err := p.dump(ctx, l.dir, l.limits.dump)
		if err != nil {
			l.log.Warn("cannot save stacks of shim", "err", err)
		}
		if saved == "" {
			saved = l.logPath()
		}
		l.log.Warn("killing shim", "pid", p.pid, "stacks", saved)
	}
	ctx, cancel := context.WithTimeout(ctx, l.limits.kill)
	defer cancel()
	return p.end(ctx, unix.SIGKILL)
}

// supervise tells the keeper how to start a shim and which process runs now. The keeper starts one
// if none runs.
func (c *Client) supervise(k *keeper.Keeper, l *link, p *process) error {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(l.logPath(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	prog := keeper.Program{
		Name: l.program(), Path: c.cfg.Binary, Log: log, BoundLog: true, Env: shimEnv(),
		Args: []string{
			c.cfg.Binary, "serve", "-state", l.dir, "-keeper", c.cfg.StateDir,
			"-name", l.program(), "-listen-fd", "3",
		},
	}
	if c.cfg.Engine != "" {
		prog.Args = append(prog.Args, "-engine", c.cfg.Engine)
	}
	if p != nil {
		prog.PID, prog.PIDFD = p.pid, p.f
	}
	_, err = k.Supervise(prog)
	return err
}

// processes returns the processes of a shim. They need not answer.
func processes(k *keeper.Keeper, l *link) []*process {
	var all []*process
	holder := lockHolder(l.dir)
	if holder != nil {
		all = append(all, holder)
	}
	if p := childOf(k, l.program()); p != nil && (holder == nil || holder.pid != p.pid) {
		all = append(all, p)
	}
	return all
}

// childOf returns the process that a keeper supervises under a name, or nil.
func childOf(k *keeper.Keeper, program string) *process {
	pid, err := k.Who(program)
	if err != nil || pid == 0 {
		return nil
	}
	f, err := pidfd.Open(pid)
	if err != nil {
		return nil
	}
	// The pid cannot be reused until the keeper has reaped the process.
	if again, err := k.Who(program); err != nil || again != pid {
		f.Close()
		return nil
	}
	return &process{pid, f}
}

// running finds the shim of an earlier keeper. The shim must answer only if its release has no
// lock.
func running(ctx context.Context, l *link) *process {
	if p := lockHolder(l.dir); p != nil {
		return p
	}
	c, err := l.connect()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	res, err := c.task.Connect(ctx, &task.ConnectRequest{})
	if err != nil {
		return nil
	}
	f, err := pidfd.Open(int(res.ShimPid))
	if err != nil {
		return nil
	}
	return &process{int(res.ShimPid), f}
}

// adoptTimeout is how long a shim whose keeper has died may take to answer, before
// another one takes its place.
const adoptTimeout = 5 * time.Second

// misplaced reports whether the name of a shim's socket no longer leads to the listener that the
// keeper holds for it.
func misplaced(k *keeper.Keeper, l *link) bool {
	_, files, err := k.Get("pass/" + l.program())
	if err != nil {
		return false
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, f := range files {
		if named, err := sock.Named(f, l.dir, sock.Shim); err == nil && !named {
			return true
		}
	}
	return false
}

// makeListener makes the socket of a program that is about to start, and gives it to the keeper.
func makeListener(k *keeper.Keeper, dir, name, program string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s, err := sock.Listen(dir, name, "unix")
	if err != nil {
		return err
	}
	defer s.Close()
	f, err := s.File()
	if err != nil {
		return err
	}
	defer f.Close()
	return k.Put("pass/"+program, "listen", f)
}

// shimEnv is the closed list of what a shim's environment has.
func shimEnv() []string {
	return append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, fault.Environ()...)
}

// endShim ends a shim without containers for good.
func (c *Client) endShim(ctx context.Context, l *link) error {
	if err := c.stopShim(ctx, l); err != nil {
		return err
	}
	return os.RemoveAll(l.dir)
}

// stopShim ends a shim and its supervision.
func (c *Client) stopShim(ctx context.Context, l *link) error {
	k := c.keeper.get()
	if k == nil {
		return fmt.Errorf("end shim %s: %w", l.name, ErrUnavailable)
	}
	l.cancel()
	<-l.done // before the lock, which it may be waiting for
	c.mu.Lock()
	delete(c.links, l.name)
	c.mu.Unlock()
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	if err := endProgram(ctx, k, l.program()); err != nil {
		return fmt.Errorf("end shim %s: %w", l.name, err)
	}
	return nil
}

// endProgram ends a program and its supervision.
func endProgram(ctx context.Context, k *keeper.Keeper, name string) error {
	pid, err := k.Who(name)
	if err != nil && !errors.Is(err, keeper.ErrNotFound) {
		return err
	}
	if err := errors.Join(k.Forget(name), k.Del("pass/"+name)); err != nil {
		return err
	}
	if pid > 0 {
		return endProcess(ctx, pid)
	}
	return nil
}
