package runtimetest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

var lifeTests = map[string]func(*rig){
	"life cycle": func(r *rig) {
		spec := r.spec("exit 7")
		spec.Annotations = map[string]string{"who": "me"}
		c := r.create(spec, runtime.Stdio{})
		r.status(c, specs.StateCreated)
		pid := c.Pid()
		ids, err := r.engine.List(r.Context())
		r.must(err)
		if !slices.Equal(ids, []string{c.ID()}) {
			r.Fatalf("list is %v", ids)
		}
		s, err := c.State(r.Context())
		r.must(err)
		if s.Pid != pid || s.Bundle != r.bundle || s.ID != c.ID() || s.Annotations["who"] != "me" || s.Created.IsZero() {
			r.Fatalf("wrong state: %+v", s)
		}
		r.must(c.Start(r.Context()))
		if got := r.wait(pid); got != 7 {
			r.Fatalf("exit status %d, want 7", got)
		}
		r.status(c, specs.StateStopped)
		if c.Pid() != 0 {
			r.Fatalf("pid is %d after the end", c.Pid())
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		_, err = r.engine.Load(r.Context(), c.ID())
		r.wantErr(err, runtime.ErrNotFound)
		ids, err = r.engine.List(r.Context())
		r.must(err)
		if len(ids) != 0 {
			r.Fatalf("list after delete is %v", ids)
		}
	},

	"a zombie counts as stopped": func(r *rig) {
		c := r.create(r.spec("exit 3"), runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.must(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
		r.status(c, specs.StateStopped)
		if got := r.wait(pid); got != 3 { // the status was still there for us
			r.Fatalf("exit status %d, want 3", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"start twice": func(r *rig) {
		c, pid := r.running()
		r.wantErr(c.Start(r.Context()), runtime.ErrRunning)
		r.status(c, specs.StateRunning)
		r.end(c, pid)
	},

	"start after init died": func(r *rig) {
		c := r.create(r.spec("true"), runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Signal(r.Context(), unix.SIGKILL))
		r.wait(pid)
		r.status(c, specs.StateStopped)
		r.wantErr(c.Start(r.Context()), runtime.ErrNotRunning)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"start after init died and was not reaped": func(r *rig) {
		c := r.create(r.spec("true"), runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Signal(r.Context(), unix.SIGKILL))
		r.must(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
		r.wantErr(c.Start(r.Context()), runtime.ErrNotRunning)
		r.wait(pid)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"delete is refused while running, forced, and idempotent": func(r *rig) {
		c, pid := r.running()
		r.wantErr(c.Delete(r.Context(), runtime.DeleteOptions{}), runtime.ErrRunning)
		r.status(c, specs.StateRunning)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{Force: true}))
		if got := r.wait(pid); got != 128+9 {
			r.Fatalf("exit status %d, want that of SIGKILL", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{Force: true}))
	},

	"delete before start": func(r *rig) {
		c := r.create(r.spec("true"), runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		r.wait(pid)
	},

	"an old handle does not delete a new container of its id": func(r *rig) {
		spec := r.spec("true")
		first := r.create(spec, runtime.Stdio{})
		pid := first.Pid()
		r.must(first.Delete(r.Context(), runtime.DeleteOptions{}))
		r.wait(pid)
		second := r.create(spec, runtime.Stdio{})
		r.must(first.Delete(r.Context(), runtime.DeleteOptions{Force: true}))
		r.status(second, specs.StateCreated)
		r.end(second, second.Pid())
	},

	"two creates of one id": func(r *rig) {
		id := r.id()
		var (
			wg   sync.WaitGroup
			made [4]runtime.Container
			errs [4]error
		)
		for i := range made {
			wg.Go(func() {
				made[i], errs[i] = r.engine.Create(r.Context(), id, Spec(id, "/bin/true"), runtime.CreateOptions{Bundle: r.bundle})
			})
		}
		wg.Wait()
		var winner runtime.Container
		for i, err := range errs {
			switch {
			case err == nil && winner == nil:
				winner = made[i]
			case err == nil:
				r.Error("two creates succeeded")
			case !errors.Is(err, runtime.ErrExists) && !errors.Is(err, runtime.ErrInvalidSpec):
				r.Errorf("a losing create says %v", err)
			}
		}
		if winner == nil {
			r.Fatal(errs)
		}
		r.status(winner, specs.StateCreated)
		r.end(winner, winner.Pid())
	},

	"many at once": func(r *rig) {
		var wg sync.WaitGroup
		for range 8 {
			spec := r.spec("exit 5")
			wg.Go(func() {
				c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
				if err != nil {
					r.Error(err)
					return
				}
				pid := c.Pid()
				if err := c.Start(r.Context()); err != nil {
					r.Error(err)
				}
				if got := r.wait(pid); got != 5 {
					r.Errorf("exit status %d, want 5", got)
				}
				if err := c.Delete(r.Context(), runtime.DeleteOptions{}); err != nil {
					r.Error(err)
				}
			})
		}
		wg.Wait()
	},

	"a context that has ended": func(r *rig) {
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		spec := r.spec("true")
		_, err := r.engine.Create(ctx, idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
		r.wantErr(err, context.Canceled)
	},
}
