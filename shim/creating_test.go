package shim

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	task "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
)

// A daemon that asks while the creation of a container goes on, which the daemon before
// it has asked for, is not told that there is none.
func TestCreationUnderWay(t *testing.T) {
	for name, ask := range map[string]func(t *testing.T, s *Service){
		"list": func(t *testing.T, s *Service) {
			if _, err := s.List(t.Context(), &api.ListRequest{}); err != nil {
				t.Error(err)
			}
		},
		"delete": func(t *testing.T, s *Service) {
			if _, err := s.Delete(t.Context(), &task.DeleteRequest{ID: "one"}); !errors.Is(err, runtime.ErrNotFound) {
				t.Errorf("delete of what was not made after all: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{Log: slog.New(slog.DiscardHandler)})
				if err := s.reserve("one"); err != nil {
					t.Fatal(err)
				}
				if err := s.reserve("one"); !errors.Is(err, runtime.ErrExists) {
					t.Errorf("reserved twice: %v", err)
				}
				answered := false
				go func() {
					ask(t, s)
					answered = true
				}()
				synctest.Wait()
				if answered {
					t.Error("answered while the creation was under way")
				}
				s.forget("one")
				synctest.Wait()
				if !answered {
					t.Error("no answer after the creation has ended")
				}
			})
		})
	}
}

// A creation that hangs does not keep a daemon from starting.
func TestCreationThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Log: slog.New(slog.DiscardHandler)})
		if err := s.reserve("one"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.List(t.Context(), &api.ListRequest{}); err != nil {
			t.Error(err)
		}
	})
}
