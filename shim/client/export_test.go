package client

import (
	"context"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
)

// KillTimeout is killTimeout.
const KillTimeout = killTimeout

// Limits exports limits.
type Limits = limits

// ShortLimits are limits for tests, in which everything is detected within a second or two.
func ShortLimits() Limits {
	return limits{
		attend: 50 * time.Millisecond, ping: 100 * time.Millisecond, calm: time.Second,
		unready: 4, replace: 10,
		dump: 200 * time.Millisecond, kill: 10 * time.Second,
		absent: 200 * time.Millisecond, start: 500 * time.Millisecond,
		keeper: 10 * time.Millisecond,
		window: time.Minute, starts: 5,
	}
}

// Patient has an unavailable shim replaced only after a minute.
func (l limits) Patient() limits {
	l.replace = 600
	return l
}

// SetLimits sets the limits of a Config.
func (c *Config) SetLimits(l Limits) { c.limits = l }

// Starts is the number of starts in a window that is not yet a restart loop.
func (l limits) Starts() int { return l.starts }

// Renew has another shim serve on another socket. named says whether the socket's name leads to the
// keeper's listener then.
func (c *Client) Renew(ctx context.Context) (named bool, err error) {
	l, err := c.open(ctx, nodeShim)
	if err != nil {
		return false, err
	}
	c.keeper.starting.Lock() // nothing is repaired
	defer c.keeper.starting.Unlock()
	k, err := c.keeperFor(ctx, l)
	if err == nil {
		err = c.renew(ctx, k, l, true)
	}
	return err == nil && !misplaced(k, l), err
}

// Create makes a container by the Task API and leaves init blocked, as containerd does.
func (c *Client) Create(ctx context.Context, r LaunchRequest) (pid int, err error) {
	l, err := c.shimFor(ctx, r.PodID)
	if err != nil {
		return 0, err
	}
	c.forget(l, r.ID)
	err = l.call(ctx, func(ctx context.Context, k *conn) error {
		res, err := k.create(ctx, c.request(r))
		pid = int(res.GetPid())
		return err
	})
	return pid, err
}

// StartContainer lets init of a container that Create has made execute the user's program.
func (c *Client) StartContainer(ctx context.Context, podID, id string) error {
	return c.once(ctx, podID, func(ctx context.Context, k *conn) error {
		_, err := k.task.Start(ctx, &task.StartRequest{ID: id})
		return err
	})
}
