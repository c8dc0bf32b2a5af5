package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/keeper"
)

// Client is the daemon's side of all shims. Its methods may be called concurrently.
type Client struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines of the Client
	events eventQueue
	keeper keeperLink
	// slowCalls receives a message after each slow call.
	slowCalls chan struct{}

	mu         sync.Mutex
	links      map[string]*link     // by name
	exits      map[string]Event     // the last exit of each container that is not deleted
	companions map[string]Companion // by name
	closed     bool
}

// nodeShim is the name of the shim of all pods.
const nodeShim = "node"

// New makes a Client; it does no I/O.
func New(cfg Config) (*Client, error) {
	if cfg.Scope == "" {
		cfg.Scope = ScopeNode
	}
	switch {
	case cfg.Scope != ScopeNode && cfg.Scope != ScopePod:
		return nil, fmt.Errorf("shim client: scope %q: give %q or %q", cfg.Scope, ScopeNode, ScopePod)
	case !filepath.IsAbs(cfg.StateDir):
		return nil, fmt.Errorf("shim client: state directory %q is not an absolute path", cfg.StateDir)
	case !filepath.IsAbs(cfg.Binary):
		return nil, fmt.Errorf("shim client: binary %q is not an absolute path", cfg.Binary)
	case cfg.Log == nil:
		return nil, errors.New("shim client: no logger")
	}
	if cfg.limits == (limits{}) {
		cfg.limits = defaultLimits()
	}
	c := &Client{
		cfg: cfg, links: make(map[string]*link), exits: make(map[string]Event), companions: make(map[string]Companion),
		slowCalls: make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.events.init()
	return c, nil
}

// Start connects to (or starts) the keeper and the shims of all pods that have records
// in StateDir. It returns when each has answered, or after two seconds without those that have not:
// see Health. If Start fails, it ends a keeper that it has started and that no shim uses.
func (c *Client) Start(ctx context.Context) (err error) {
	for _, dir := range []string{c.cfg.StateDir, filepath.Join(c.cfg.StateDir, "pods")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("start shim client: %w", err)
		}
	}
	if err := os.Chmod(c.cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("start shim client: %w", err)
	}
	// FIFOs of the execs and attachments of a daemon that was killed.
	if err := os.RemoveAll(c.execDir()); err != nil {
		return fmt.Errorf("start shim client: %w", err)
	}
	if err := os.Mkdir(c.execDir(), 0o700); err != nil {
		return fmt.Errorf("start shim client: %w", err)
	}
	spawned, err := c.connectKeeper(ctx)
	defer func() {
		if err != nil && spawned {
			c.abandon(ctx)
		}
	}()
	if err != nil {
		return fmt.Errorf("start shim client: %w", err)
	}
	names, err := c.known()
	if err != nil {
		return fmt.Errorf("start shim client: %w", err)
	}
	c.work.Go(func() { c.events.run(c.ctx) })
	for _, name := range names {
		if _, err := c.open(ctx, name); err != nil {
			return fmt.Errorf("start shim client: %w", err)
		}
	}
	c.work.Go(c.watchKeeper)
	c.work.Go(c.pingKeeper)
	return c.awaitShims(ctx)
}

// awaitShims waits until each shim has answered. It does not wait for shims that hang: the daemon
// must serve without them.
func (c *Client) awaitShims(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, c.cfg.limits.start)
	defer cancel()
	for _, l := range c.all() {
		select {
		case <-l.first:
			// A creation that outlived the last daemon must not complete after this point, so wait
			// for it.
			if _, err := list(bounded, l); err != nil && bounded.Err() == nil {
				return fmt.Errorf("start shim client: %w", err)
			}
		case <-bounded.Done():
			if ctx.Err() == nil {
				c.cfg.Log.Warn("starting without a shim that does not answer", "shim", l.name, "err", l.unavailable(bounded))
			}
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("start shim client: %w: %w", ErrUnavailable, ctx.Err())
	}
	return nil
}

// abandon ends the keeper, and the shims that it has started, unless there are
// containers.
func (c *Client) abandon(ctx context.Context) {
	for _, pattern := range []string{"node/c/*", "pods/*/c/*"} {
		if found, err := filepath.Glob(filepath.Join(c.cfg.StateDir, pattern)); err != nil || len(found) > 0 {
			return
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, l := range c.all() {
		if err := c.stopShim(ctx, l); err != nil {
			c.cfg.Log.Warn("shim is left", "err", err)
		}
	}
	if err := c.stopCompanions(ctx); err != nil {
		c.cfg.Log.Warn("companion of the shim is left", "err", err)
	}
	c.keeper.leave()
	if k := c.keeper.get(); k != nil {
		if err := k.Quit(); err != nil && !errors.Is(err, keeper.ErrGone) {
			c.cfg.Log.Warn("keeper is left", "err", err)
		}
	}
}

// known are the names of the shims that must run.
func (c *Client) known() ([]string, error) {
	var names []string
	_, err := os.Stat(shimDir(c.cfg.StateDir, nodeShim))
	if c.cfg.Scope == ScopeNode || err == nil {
		names = append(names, nodeShim)
	}
	pods, err := os.ReadDir(filepath.Join(c.cfg.StateDir, "pods"))
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		names = append(names, p.Name())
	}
	return names, nil
}

// open returns the link to a shim, and starts both if need be.
func (c *Client) open(ctx context.Context, name string) (*link, error) {
	if err := runtime.ValidateID(name); err != nil || len(name) > maxPodID {
		return nil, fmt.Errorf("%w: pod id %q", ErrInvalid, name)
	}
	c.mu.Lock()
	l := c.links[name]
	if l != nil || c.closed {
		c.mu.Unlock()
		if l == nil {
			return nil, fmt.Errorf("shim %s: closed: %w", name, ErrUnavailable)
		}
		return l, nil
	}
	l = c.newLink(name)
	c.links[name] = l
	c.mu.Unlock()
	return l, c.ensure(ctx, l)
}

// newLink makes a link and starts connecting. The caller holds c.mu.
func (c *Client) newLink(name string) *link {
	l := newLink(name, &c.cfg)
	ctx, cancel := context.WithCancel(c.ctx)
	l.cancel, l.slow = cancel, c.noteSlow
	l.attention.timer = time.AfterFunc(l.limits.attend, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.closed {
			c.work.Go(func() { l.attend(ctx, c) })
		}
	})
	c.work.Go(func() { l.run(ctx, c) })
	return l
}

// maxPodID keeps names within the keeper's bounds.
const maxPodID = 128

// forPod is the link to the shim that has a pod's containers.
func (c *Client) forPod(podID string) (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.links[podID]; l != nil {
		return l, nil
	}
	if l := c.links[nodeShim]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("pod %s has no shim: %w", podID, ErrNotFound)
}

func (c *Client) all() []*link {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*link, 0, len(c.links))
	for _, l := range c.links {
		all = append(all, l)
	}
	return all
}

// Close stops supervising and disconnects. Containers, shims and keeper stay, and the
// keeper no longer starts the daemon again.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	var err error
	c.keeper.leave() // first: watchKeeper may be about to have a keeper supervise the daemon
	if k := c.keeper.get(); k != nil && c.cfg.Daemon != nil {
		if err = k.Forget(daemonName); errors.Is(err, keeper.ErrGone) {
			err = nil
		}
	}
	c.cancel()
	c.keeper.close()
	c.work.Wait()
	return err
}

// Shutdown ends all shims and the keeper and closes the Client. It fails with
// ErrRunning and changes nothing if there are containers.
func (c *Client) Shutdown(ctx context.Context) error {
	pods, err := c.List(ctx)
	if err != nil {
		return fmt.Errorf("shut shims down: %w", err)
	}
	for pod, ids := range pods {
		if len(ids) > 0 {
			return fmt.Errorf("shut shims down: pod %s has %d containers: %w", pod, len(ids), ErrRunning)
		}
	}
	for _, l := range c.all() {
		if err := c.endShim(ctx, l); err != nil {
			return fmt.Errorf("shut shims down: %w", err)
		}
	}
	if err := c.stopCompanions(ctx); err != nil {
		return fmt.Errorf("shut shims down: %w", err)
	}
	k := c.keeper.get()
	c.keeper.leave()
	if k != nil {
		if err := k.Quit(); err != nil && !errors.Is(err, keeper.ErrGone) {
			return fmt.Errorf("shut keeper down: %w", err)
		}
	}
	if err := c.Close(); err != nil {
		return err
	}
	return os.RemoveAll(c.cfg.StateDir)
}

func (c *Client) execDir() string { return filepath.Join(c.cfg.StateDir, "exec") }
