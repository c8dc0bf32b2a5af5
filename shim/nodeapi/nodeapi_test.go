package nodeapi

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/shim/client"
	nodev1 "github.com/coracle-project/coracle/shim/nodeapi/v1"
)

// fakeShims are two shims, one of which hangs.
type fakeShims struct{ restarted []string }

func (f *fakeShims) Shims() []client.Shim {
	return []client.Shim{{Name: "a", PID: 7, Starts: 2, LastExit: "killed"}, {Name: "hangs", Problem: "does not answer"}}
}

func (f *fakeShims) ShimVersion(ctx context.Context, name string) (string, error) {
	if name == "hangs" {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return "1.2.3", nil
}

func (f *fakeShims) RestartShim(_ context.Context, name string) error {
	switch name {
	case "nosuch":
		return fmt.Errorf("restart shim %s: %w", name, client.ErrNotFound)
	case "hangs":
		return fmt.Errorf("restart shim %s: %w", name, client.ErrUnavailable)
	}
	f.restarted = append(f.restarted, name)
	return nil
}

func TestListDoesNotWaitForAShimThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := (&service{shims: &fakeShims{}}).ListShims(t.Context(), nil)
		if err != nil || len(r.GetShims()) != 2 {
			t.Fatal(r, err)
		}
		a, hangs := r.GetShims()[0], r.GetShims()[1]
		if a.GetVersion() != "1.2.3" || a.GetPid() != 7 || a.GetStarts() != 2 || a.GetLastExit() != "killed" {
			t.Errorf("a: %v", a)
		}
		if hangs.GetVersion() != "" || hangs.GetProblem() == "" {
			t.Errorf("hangs: %v", hangs)
		}
	})
}

func TestRestart(t *testing.T) {
	f := &fakeShims{}
	s := &service{shims: f}
	r, err := s.RestartShims(t.Context(), &nodev1.RestartShimsRequest{Names: []string{"a"}})
	if err != nil || len(r.GetShims()) != 1 || len(f.restarted) != 1 || f.restarted[0] != "a" {
		t.Errorf("%v, %v; restarted %q", r, err, f.restarted)
	}
	for name, want := range map[string]codes.Code{"nosuch": codes.NotFound, "hangs": codes.Unavailable} {
		if _, err := s.RestartShims(t.Context(), &nodev1.RestartShimsRequest{Names: []string{name}}); status.Code(err) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}
