package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
	"github.com/coracle-project/coracle/shim/sock"
)

// daemonName is the daemon's name in the keeper.
const daemonName = "daemon"

// keeperLink is the current keeper.
type keeperLink struct {
	mu   sync.Mutex
	k    *keeper.Keeper
	left bool // no other keeper is wanted

	starting sync.Mutex // held while a shim is being looked for or started
}

func (l *keeperLink) get() *keeper.Keeper {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.k
}

func (l *keeperLink) set(k *keeper.Keeper) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.k != nil {
		l.k.Close()
	}
	l.k = k
}

func (l *keeperLink) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = true
}

func (l *keeperLink) wanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.left
}

func (l *keeperLink) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = true
	if l.k != nil {
		l.k.Close()
	}
}

// connectKeeper finds the keeper or starts one (spawned), and has it supervise the daemon.
func (c *Client) connectKeeper() (spawned bool, err error) {
	k, err := keeper.Dial(c.cfg.StateDir)
	if errors.Is(err, keeper.ErrGone) {
		l, lerr := keeper.Listen(c.cfg.StateDir)
		if lerr != nil {
			return false, lerr
		}
		err = keeper.Spawn(c.cfg.Binary, l)
		l.Close()
		if err != nil {
			return false, err
		}
		spawned = true
		k, err = keeper.Dial(c.cfg.StateDir)
	}
	if err != nil {
		return spawned, err
	}
	c.keeper.set(k)
	return spawned, c.superviseDaemon(k)
}

func (c *Client) superviseDaemon(k *keeper.Keeper) error {
	d := c.cfg.Daemon
	if d == nil {
		return k.Forget(daemonName)
	}
	self, err := pidfd.Open(os.Getpid())
	if err != nil {
		return err
	}
	defer self.Close()
	_, err = k.Supervise(keeper.Program{
		Name: daemonName, Path: d.Path, Args: d.Args, Env: d.Env, Log: os.Stderr, PID: os.Getpid(), PIDFD: self,
	})
	return err
}

// watchKeeper replaces a keeper that has died.
func (c *Client) watchKeeper() {
	pause := time.Duration(0)
	for {
		if k := c.keeper.get(); k != nil {
			k.Watch()
		}
		if c.ctx.Err() != nil || !c.keeper.wanted() {
			return
		}
		_, err := c.connectKeeper()
		if err == nil {
			pause = 0
			c.cfg.Log.Warn("the keeper was gone; another one is there")
			for _, l := range c.all() {
				if err := c.ensure(c.ctx, l); err != nil {
					c.cfg.Log.Error("shim is not supervised", "shim", l.name, "error", err)
				}
			}
			c.ensureCompanions(c.ctx)
			continue
		}
		c.cfg.Log.Error("there is no keeper", "error", err)
		pause = min(2*pause+50*time.Millisecond, 5*time.Second)
		select {
		case <-time.After(pause):
		case <-c.ctx.Done():
			return
		}
	}
}

// ensure makes the keeper supervise l's shim: one that runs is adopted, else one is
// started.
func (c *Client) ensure(ctx context.Context, l *link) error {
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	k := c.keeper.get()
	if k == nil || ctx.Err() != nil || l.ended() {
		return fmt.Errorf("shim %s: %w", l.name, ErrUnavailable)
	}
	if _, err := k.Who(l.program()); err == nil {
		return nil
	} else if !errors.Is(err, keeper.ErrNotFound) {
		return fmt.Errorf("shim %s: %w", l.name, err)
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return fmt.Errorf("shim %s: %w", l.name, err)
	}
	log, err := os.OpenFile(filepath.Join(l.dir, "shim.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("shim %s: %w", l.name, err)
	}
	defer log.Close()
	p := keeper.Program{
		Name: l.program(), Path: c.cfg.Binary, Log: log, Env: shimEnv(),
		Args: []string{
			c.cfg.Binary, "serve", "-state", l.dir, "-keeper", c.cfg.StateDir,
			"-name", l.program(), "-listen-fd", "3",
		},
	}
	if c.cfg.Engine != "" {
		p.Args = append(p.Args, "-engine", c.cfg.Engine)
	}
	if p.PID, p.PIDFD = running(ctx, l); p.PIDFD != nil {
		defer p.PIDFD.Close()
	} else if err := makeListener(k, l.dir, sock.Shim, l.program()); err != nil {
		return fmt.Errorf("shim %s: %w", l.name, err)
	}
	if _, err := k.Supervise(p); err != nil {
		return fmt.Errorf("shim %s: %w", l.name, err)
	}
	return nil
}

// running finds the shim of an earlier keeper.
func running(ctx context.Context, l *link) (pid int, fd *os.File) {
	c, err := l.connect()
	if err != nil {
		return 0, nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	res, err := c.task.Connect(ctx, &task.ConnectRequest{})
	if err != nil {
		return 0, nil
	}
	if fd, err = pidfd.Open(int(res.ShimPid)); err != nil {
		return 0, nil
	}
	return int(res.ShimPid), fd
}

// adoptTimeout is how long a shim whose keeper has died may take to answer, before
// another one takes its place.
const adoptTimeout = 5 * time.Second

// makeListener makes the socket of a program that is about to start, and gives it to the keeper.
func makeListener(k *keeper.Keeper, dir, name, program string) error {
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

// endProcess asks a process to end and waits for it.
func endProcess(ctx context.Context, pid int) error {
	f, err := pidfd.Open(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	if _, err := pidfd.Wait(f, pid); err != nil {
		return fmt.Errorf("process %d does not end: %w", pid, errors.Join(ctx.Err(), err))
	}
	return nil
}
