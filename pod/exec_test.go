package pod

import (
	"errors"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/streams"
)

// Commands run as the bundle of their container says, and end with the Manager.
func TestExecInARunningContainer(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	ok(t, m.StartContainer(ctx, id))
	r := must[streams.ExecSyncResult](t)(m.ExecSync(ctx, streams.ExecRequest{Container: id, Command: []string{"env"}}, 0))
	if r.ExitCode != 3 || !strings.Contains(string(r.Stdout), "A=image") {
		t.Errorf("got code %d, output %q", r.ExitCode, r.Stdout)
	}
	r.Free()
	ok(t, m.Close())
	if _, err := m.ExecSync(ctx, streams.ExecRequest{Container: id, Command: []string{"env"}}, 0); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("exec by a closed Manager: %v", err)
	}
	m, _ = b.manager()
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}
