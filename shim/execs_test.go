package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// Neither one container nor all together can have so many execs that the shim or the keeper runs
// out of descriptors.
func TestExecsAreLimited(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	add := func(container, exec int) error {
		_, err := s.Exec(t.Context(), &task.ExecProcessRequest{
			ID: fmt.Sprint("c", container), ExecID: fmt.Sprint("x", exec), Spec: &anypb.Any{Value: []byte("{}")},
		})
		return err
	}
	const containers = maxAllExecs/maxExecs + 1
	for i := range containers {
		c := newContainer(s, record{ID: fmt.Sprint("c", i), Phase: phaseRunning})
		c.init = &process{}
		s.add(c)
	}
	for i := range containers - 1 {
		for k := range maxExecs {
			if err := add(i, k); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, err := range map[string]error{"of one container": add(0, maxExecs), "of all": add(containers-1, 0)} {
		if !errors.Is(err, errExhausted) || status.Code(toStatus(err)) != codes.ResourceExhausted {
			t.Errorf("one exec too many %s: %v", what, err)
		}
	}
	if _, err := s.Delete(t.Context(), &task.DeleteRequest{ID: "c0", ExecID: "x0"}); err != nil {
		t.Fatal(err)
	}
	if err := add(0, 0); err != nil {
		t.Errorf("when one has ended: %v", err)
	}
}

// A kill waits for a start under way, whose process may run already, but not for one to come.
func TestKillWaitsForTheStartOfAnExec(t *testing.T) {
	for _, tc := range []struct {
		name           string
		atOnce, begins bool
	}{{"run", true, true}, {"start", false, true}, {"no start", false, false}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{Log: slog.New(slog.DiscardHandler)})
				c := newContainer(s, record{ID: "c", Phase: phaseRunning})
				c.init = &process{}
				s.add(c)
				e, err := c.addExec("x", execRecord{}, []byte("{}"), tc.atOnce)
				if err != nil {
					t.Fatal(err)
				}
				if tc.begins && !tc.atOnce {
					if err := e.take(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				killed := make(chan error, 1)
				go func() {
					_, err := s.Kill(t.Context(), &task.KillRequest{ID: "c", ExecID: "x", Signal: uint32(unix.SIGKILL)})
					killed <- err
				}()
				synctest.Wait()
				if waits := len(killed) == 0; waits != tc.begins {
					t.Errorf("waits: %v, want %v", waits, tc.begins)
				}
				if tc.begins {
					e.give() // without a process
				}
				if err := <-killed; !errors.Is(err, errPrecondition) {
					t.Errorf("kill: %v, want %v", err, errPrecondition)
				}
				if err := e.remove(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A start that hangs holds up neither a deletion of the exec without end, nor, at its deadline,
// those who wait for that. When it ends, the exec is gone.
func TestStartOfAnExecThatHangs(t *testing.T) {
	for _, deadline := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{Log: slog.New(slog.DiscardHandler)})
			defer s.stop()
			c := newContainer(s, record{ID: "c", Phase: phaseRunning})
			c.init = &process{}
			s.add(c)
			rec := execRecord{}
			if deadline > 0 {
				rec.Deadline = now() + deadline
			}
			e, err := c.addExec("x", rec, []byte("{}"), true)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(deadline + 2*overtime)
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if _, err := s.Delete(ctx, &task.DeleteRequest{ID: "c", ExecID: "x"}); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("delete: %v", err)
				}
				cancel()
			}
			if e.bound.Err() == nil {
				t.Error("the start is not told")
			}
			e.give() // it ends
			synctest.Wait()
			if deadline > 0 { // expire was first, and leaves the removal to the owner
				if _, err := s.Delete(t.Context(), &task.DeleteRequest{ID: "c", ExecID: "x"}); err != nil {
					t.Error(err)
				}
			}
			if len(c.allExecs()) > 0 || s.execs.Load() != 0 {
				t.Error("the exec is still there")
			}
		})
	}
}
