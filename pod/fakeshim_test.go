package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/client"
)

type fakeShim struct{ *hands }

func (s fakeShim) Events() <-chan client.Event { return s.events }

func (s fakeShim) Launch(ctx context.Context, r client.LaunchRequest) (client.Launched, error) {
	pid, err := s.create(ctx, r)
	created := time.Now()
	if err == nil {
		err = s.start(ctx, r.ID)
	}
	steps := []runtime.Step{{What: "clone", Began: created, Took: time.Millisecond}}
	return client.Launched{Pid: pid, Created: created, EngineSteps: steps}, err
}

func (s fakeShim) create(ctx context.Context, r client.LaunchRequest) (pid int, err error) {
	err = s.do(ctx, "shim.Create", func() error {
		if s.procs[r.ID] != nil {
			return client.ErrExists
		}
		b, err := os.ReadFile(filepath.Join(r.Bundle, "config.json"))
		if err != nil {
			return err
		}
		var spec specs.Spec
		if err := json.Unmarshal(b, &spec); err != nil {
			return err
		}
		if spec.Process.Args[0] == "missing" {
			return errors.New("exec: \"missing\": executable file not found in $PATH")
		}
		s.nextPid++
		pid = s.nextPid
		s.procs[r.ID] = &proc{
			podID: r.PodID, handler: r.Handler, args: spec.Process.Args, checkpoint: r.Checkpoint, logDirectory: r.LogDirectory,
			pid: pid, state: client.StateCreated, limits: spec.Linux.Resources,
		}
		return nil
	})
	return pid, err
}

func (s fakeShim) start(ctx context.Context, id string) error {
	return s.do(ctx, "shim.StartContainer", func() error {
		p := s.procs[id]
		if p == nil {
			return client.ErrNotFound
		}
		p.state = client.StateRunning
		if p.args[0] == "exit" {
			code, _ := strconv.Atoi(p.args[1])
			s.exitLocked(id, int32(code))
		}
		return nil
	})
}

func (s fakeShim) Kill(ctx context.Context, r client.KillRequest) error {
	return s.do(ctx, "shim.Kill", func() error {
		p := s.procs[r.ID]
		if p == nil {
			return client.ErrNotFound
		}
		if p.state == client.StateStopped {
			return client.ErrNotRunning
		}
		p.signals = append(p.signals, r.Signal)
		if r.Signal == syscall.SIGKILL || p.args[0] != "stubborn" {
			s.exitLocked(r.ID, 128+int32(r.Signal))
		}
		return nil
	})
}

func (s fakeShim) Delete(ctx context.Context, _, id string) error {
	return s.do(ctx, "shim.Delete", func() error {
		if p := s.procs[id]; p != nil && p.state == client.StateRunning {
			return client.ErrRunning
		}
		delete(s.procs, id)
		return nil
	})
}

func (s fakeShim) DeletePod(ctx context.Context, podID string) error {
	return s.do(ctx, "shim.DeletePod", func() error {
		for id, p := range s.procs {
			if p.podID == podID {
				return fmt.Errorf("container %s of the pod is left", id)
			}
		}
		return nil
	})
}

func (s fakeShim) Status(ctx context.Context, _, id string) (st client.Status, err error) {
	err = s.do(ctx, "shim.Status", func() error {
		p := s.procs[id]
		if p == nil {
			return client.ErrNotFound
		}
		if p.unread {
			return client.ErrDamaged
		}
		st = client.Status{Pid: p.pid, State: p.state, ExitCode: p.code, ExitedAt: p.exitedAt, OOMKilled: p.oom}
		return nil
	})
	return st, err
}

func (s fakeShim) List(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	err := s.do(ctx, "shim.List", func() error {
		for id, p := range s.procs {
			if s.silent[p.podID] == nil {
				out[p.podID] = append(out[p.podID], id)
			}
		}
		if len(s.silent) > 0 {
			return &client.UnansweredError{Pods: maps.Clone(s.silent)}
		}
		return nil
	})
	return out, err
}

func (s fakeShim) Update(ctx context.Context, _, id string, r *specs.LinuxResources) error {
	return s.do(ctx, "shim.Update", func() error {
		s.procs[id].limits = r
		return nil
	})
}

func (s fakeShim) ReopenLog(ctx context.Context, _, _ string) error {
	return s.do(ctx, "shim.ReopenLog", func() error { return nil })
}

func (s fakeShim) Exec(ctx context.Context, r client.ExecRequest) (int32, error) {
	if err := s.do(ctx, "shim.Exec", func() error { return nil }); err != nil {
		return 0, err
	}
	fmt.Fprint(r.Streams.Stdout, strings.Join(r.Process.Env, "\n"))
	return 3, nil
}

func (s fakeShim) Attach(ctx context.Context, _, _ string, _ client.Streams) error {
	return s.do(ctx, "shim.Attach", func() error { return nil })
}

func (s fakeShim) Pause(ctx context.Context, _, id string) error {
	return s.do(ctx, "shim.Pause", func() error {
		s.procs[id].paused = true
		return nil
	})
}

func (s fakeShim) Resume(ctx context.Context, _, id string) error {
	return s.do(ctx, "shim.Resume", func() error {
		if p := s.procs[id]; p != nil {
			p.paused = false
		}
		return nil
	})
}

func (s fakeShim) Checkpoint(ctx context.Context, _, id, dir string) error {
	return s.do(ctx, "shim.Checkpoint", func() error {
		for other, p := range s.procs {
			if p.state == client.StateRunning && !p.paused {
				return fmt.Errorf("container %s is saved while %s goes on", id, other)
			}
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "pages.img"), []byte(id), 0o600)
	})
}
