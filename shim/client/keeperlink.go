package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// daemonName is the daemon's program name in the keeper.
const daemonName = "daemon"

// keeperLink is the connection to the current keeper.
type keeperLink struct {
	mu   sync.Mutex
	k    *keeper.Keeper
	left bool // closed for good: no keeper is wanted any more

	starting sync.Mutex // held while a shim is being looked for or started
}

func (l *keeperLink) get() *keeper.Keeper {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.k
}

// set changes the keeper, unless none is wanted any more.
func (l *keeperLink) set(k *keeper.Keeper) (wanted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left {
		return false
	}
	if l.k != nil {
		l.k.Close()
	}
	l.k = k
	return true
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

// connectKeeper finds the keeper, or starts one (started), and makes it supervise the daemon. It
// kills a keeper that hangs.
func (c *Client) connectKeeper(ctx context.Context) (started bool, err error) {
	for tries := 1; ; tries++ {
		err = c.dialKeeper()
		switch {
		case errors.Is(err, keeper.ErrHung) && tries < hungTries:
			// The keeper may only have waited for the CPU.
			select {
			case <-time.After(c.cfg.limits.keeper):
				continue
			case <-ctx.Done():
				return started, errors.Join(err, ctx.Err())
			}
		case started, !errors.Is(err, keeper.ErrGone) && !errors.Is(err, keeper.ErrHung):
			return started, err
		}
		if err := c.startKeeper(ctx); err != nil {
			return false, err
		}
		started = true
	}
}

// hungTries is the number of consecutive unanswered attempts after which a keeper is killed.
const hungTries = 3

func (c *Client) dialKeeper() error {
	k, err := keeper.Dial(c.cfg.StateDir)
	if err != nil {
		return err
	}
	if err := c.superviseDaemon(k); err != nil {
		k.Close()
		return err
	}
	if c.keeper.set(k) {
		return nil
	}
	defer k.Close()
	// Close may have had the daemon forgotten before superviseDaemon.
	return errors.Join(fmt.Errorf("connect to keeper: closed: %w", ErrUnavailable), k.Forget(daemonName))
}

// startKeeper starts a keeper. It replaces one that hangs or whose socket is gone.
func (c *Client) startKeeper(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.limits.kill)
	defer cancel()
	report, err := keeper.Start(ctx, c.cfg.StateDir, c.cfg.Binary)
	if report == "" {
		return err
	}
	saved, serr := saveReport(c.cfg.StateDir, "keeper", []byte(report))
	if serr != nil {
		c.cfg.Log.Warn("cannot save stacks of keeper", "err", serr)
	}
	c.cfg.Log.Warn("keeper was killed: no answer, or its socket was gone", "stacks", saved)
	return err
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

// watchKeeper replaces a keeper that has died or hangs.
func (c *Client) watchKeeper() {
	pause := time.Duration(0)
	for {
		if k := c.keeper.get(); k != nil {
			k.Watch()
		}
		if c.ctx.Err() != nil || !c.keeper.wanted() {
			return
		}
		started, err := c.connectKeeper(c.ctx)
		if err == nil {
			pause = 0
			if started {
				c.cfg.Log.Warn("keeper was lost; a new one runs")
			}
			for _, l := range c.all() {
				if err := c.ensure(c.ctx, l); err != nil {
					c.cfg.Log.Error("shim is not supervised", "shim", l.name, "err", err)
				}
			}
			c.ensureCompanions(c.ctx)
			continue
		}
		if c.ctx.Err() != nil {
			return
		}
		c.cfg.Log.Error("cannot start keeper", "err", err)
		pause = min(2*pause+50*time.Millisecond, 5*time.Second)
		select {
		case <-time.After(pause):
		case <-c.ctx.Done():
			return
		}
	}
}

// pingKeeper pings the keeper after each slow call. A shim that waits for a hung keeper is slow,
// and nothing else would notice. watchKeeper replaces a keeper that does not answer.
func (c *Client) pingKeeper() {
	for {
		select {
		case <-c.slowCalls:
		case <-c.ctx.Done():
			return
		}
		if k := c.keeper.get(); k != nil {
			_ = k.Ping(c.ctx) // closes the connection if it fails
		}
		select {
		case <-time.After(c.cfg.limits.keeper):
		case <-c.ctx.Done():
			return
		}
	}
}

// noteSlow makes pingKeeper ping the keeper.
func (c *Client) noteSlow() {
	select {
	case c.slowCalls <- struct{}{}:
	default:
	}
}
