package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
)

// Kill sends a signal. ErrNotRunning if the container has ended.
func (c *Client) Kill(ctx context.Context, r KillRequest) error {
	err := c.retried(ctx, r.PodID, func(ctx context.Context, k *conn) error {
		_, err := k.task.Kill(ctx, &task.KillRequest{ID: r.ID, Signal: uint32(r.Signal), All: r.All})
		return err
	})
	if errors.Is(err, ErrNotFound) {
		// The Task API says NotFound for what has ended, too.
		if _, serr := c.Status(ctx, r.PodID, r.ID); serr == nil {
			return fmt.Errorf("kill container %s: %w", r.ID, ErrNotRunning)
		}
	}
	return err
}

// Delete frees a container that is not running (killing what is left of it);
// idempotent. ErrRunning if it runs.
func (c *Client) Delete(ctx context.Context, podID, id string) error {
	l, err := c.forPod(podID)
	if errors.Is(err, ErrNotFound) && podID != "" { // without a pod it may be in any shim
		return nil
	}
	if err != nil {
		return err
	}
	err = l.again(ctx, func(ctx context.Context, k *conn) error {
		_, err := k.task.Delete(ctx, &task.DeleteRequest{ID: id})
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound):
		err = nil
	case errors.Is(err, ErrNotRunning): // a failed precondition means the opposite here
		return fmt.Errorf("%w: %s", ErrRunning, err.Error())
	case err != nil:
		return err
	}
	c.forget(l, id)
	return err
}

func (c *Client) forget(l *link, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, told := c.exits[id]; told {
		l.noteDeleted(id, e.Pid)
		delete(c.exits, id)
	}
}

// DeletePod says that no container of the pod is left: with ScopePod its shim ends.
// Idempotent.
func (c *Client) DeletePod(ctx context.Context, podID string) error {
	c.mu.Lock()
	l := c.links[podID]
	c.mu.Unlock()
	if l == nil || podID == nodeShim {
		return nil
	}
	ids, err := list(ctx, l)
	if err != nil {
		return fmt.Errorf("delete pod %s: %w", podID, err)
	}
	for _, in := range ids {
		if len(in) > 0 {
			return fmt.Errorf("delete pod %s: it has %d containers: %w", podID, len(in), ErrRunning)
		}
	}
	return c.endShim(ctx, l)
}

// Status is what the shim knows of a container now.
func (c *Client) Status(ctx context.Context, podID, id string) (Status, error) {
	var res *task.StateResponse
	err := c.retried(ctx, podID, func(ctx context.Context, k *conn) (err error) {
		res, err = k.task.State(ctx, &task.StateRequest{ID: id})
		return err
	})
	if err != nil {
		return Status{}, err
	}
	s := Status{Pid: int(res.Pid), State: stateOf(res.Status)}
	if s.State == StateStopped {
		s.ExitCode, s.ExitedAt = int32(res.ExitStatus), res.ExitedAt.AsTime()
		c.mu.Lock()
		ev, told := c.exits[id] // says what the Task API has no room for
		c.mu.Unlock()
		if told && ev.Pid == s.Pid {
			s.OOMKilled, s.ExitedAt = ev.OOMKilled, ev.ExitedAt
		}
	}
	return s, nil
}

func stateOf(s tasktypes.Status) State {
	switch s {
	case tasktypes.Status_CREATED:
		return StateCreated
	case tasktypes.Status_PAUSED, tasktypes.Status_PAUSING:
		return StatePaused
	case tasktypes.Status_STOPPED:
		return StateStopped
	}
	return StateRunning
}

// Stats reads the container's cgroup.
func (c *Client) Stats(ctx context.Context, podID, id string) (runtime.Stats, error) {
	var res *task.StatsResponse
	err := c.retried(ctx, podID, func(ctx context.Context, k *conn) (err error) {
		res, err = k.task.Stats(ctx, &task.StatsRequest{ID: id})
		return err
	})
	if err != nil {
		return runtime.Stats{}, err
	}
	s, err := decodeStats(res.Stats)
	if err != nil {
		return runtime.Stats{}, fmt.Errorf("stats of container %s: %w", id, err)
	}
	s.Time = time.Now()
	return s, nil
}

// Checkpoint saves the processes of a running container in a directory, which is made if
// missing, and lets them go on. ErrUnsupported if criu(8) is missing or the container's
// runtime cannot.
func (c *Client) Checkpoint(ctx context.Context, podID, id, dir string) error {
	return c.once(ctx, podID, func(ctx context.Context, k *conn) error {
		_, err := k.task.Checkpoint(ctx, &task.CheckpointTaskRequest{ID: id, Path: dir})
		return err
	})
}

// Pause freezes all processes of a container; Resume lets them go on.
func (c *Client) Pause(ctx context.Context, podID, id string) error {
	return c.retried(ctx, podID, func(ctx context.Context, k *conn) error {
		_, err := k.task.Pause(ctx, &task.PauseRequest{ID: id})
		return err
	})
}

// Resume undoes Pause.
func (c *Client) Resume(ctx context.Context, podID, id string) error {
	return c.retried(ctx, podID, func(ctx context.Context, k *conn) error {
		_, err := k.task.Resume(ctx, &task.ResumeRequest{ID: id})
		return err
	})
}

// Update changes the resource limits; nil fields stay as they are.
func (c *Client) Update(ctx context.Context, podID, id string, r *specs.LinuxResources) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("update container %s: %w", id, err)
	}
	return c.retried(ctx, podID, func(ctx context.Context, k *conn) error {
		_, err := k.task.Update(ctx, &task.UpdateTaskRequest{
			ID: id, Resources: &anypb.Any{TypeUrl: ociTypes + "LinuxResources", Value: b},
		})
		return err
	})
}

// ociTypes starts the type URLs that containerd gives to OCI objects in JSON.
const ociTypes = "types.containerd.io/opencontainers/runtime-spec/1/"

// ReopenLog goes on in a new file under the log's path, after the old was renamed.
func (c *Client) ReopenLog(ctx context.Context, podID, id string) error {
	return c.retried(ctx, podID, func(ctx context.Context, k *conn) error {
		_, err := k.shim.ReopenLog(ctx, &api.ReopenLogRequest{Id: id})
		return err
	})
}

func (c *Client) once(ctx context.Context, podID string, do func(context.Context, *conn) error) error {
	l, err := c.forPod(podID)
	if err != nil {
		return err
	}
	return l.call(ctx, do)
}

func (c *Client) retried(ctx context.Context, podID string, do func(context.Context, *conn) error) error {
	l, err := c.forPod(podID)
	if err != nil {
		return err
	}
	return l.again(ctx, do)
}

// resize passes terminal sizes on until the channel is closed or ctx ends.
func (c *Client) resize(ctx context.Context, podID, id, execID string, sizes <-chan Size) {
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			err := c.retried(ctx, podID, func(ctx context.Context, k *conn) error {
				_, err := k.task.ResizePty(ctx, &task.ResizePtyRequest{
					ID: id, ExecID: execID, Width: uint32(s.Width), Height: uint32(s.Height),
				})
				return err
			})
			if err != nil && ctx.Err() == nil {
				c.cfg.Log.Debug("terminal not resized", "container", id, "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

const sigkill = uint32(unix.SIGKILL)
