package shim

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v3"
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
