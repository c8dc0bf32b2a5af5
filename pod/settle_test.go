package pod

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// A shim that cannot tell a container's end for now, as without descriptors, keeps it until it can.
func TestEndThatCannotBeToldYet(t *testing.T) {
	for _, cause := range []error{client.ErrExhausted, errors.New("something else")} {
		t.Run(cause.Error(), func(t *testing.T) {
			b := newBench(t)
			m, _ := b.manager()
			id := must[string](t)(m.Create(t.Context(), must[string](t)(m.Run(t.Context(), podConfig("p"))), containerConfig("run")))
			ok(t, m.StartContainer(t.Context(), id))
			b.mu.Lock() // it has ended, and no event has come
			p := b.procs[id]
			p.state, p.code, p.exitedAt = client.StateStopped, 7, time.Now()
			b.mu.Unlock()
			b.fault("shim.Status", func(context.Context) error { return cause })
			if err := m.StopContainer(t.Context(), id, 0); !errors.Is(err, cause) {
				t.Errorf("stop: %v", err)
			}
			b.repair("shim.Status")
			ok(t, m.StopContainer(t.Context(), id, 0))
			if c := must[state.Container](t)(m.Container(id)); c.State != state.Exited || c.ExitCode != 7 {
				t.Errorf("container is %s, %d", c.State, c.ExitCode)
			}
		})
	}
}
