package pod

import (
	"slices"
	"testing"

	"github.com/coracle-project/coracle/pod/state"
)

// TestSteps: where the time of a start went is recorded of every pod and container, and outlives
// the daemon.
func TestSteps(t *testing.T) {
	b := newBench(t)
	first, h := b.manager()
	podID := must[string](t)(first.Run(t.Context(), podConfig("p")))
	id := must[string](t)(first.Create(t.Context(), podID, containerConfig("run")))
	ok(t, first.StartContainer(t.Context(), id))
	b.kill(h)
	m, _ := b.manager()
	for _, tc := range []struct {
		of    string
		steps []state.Step
		want  []string
	}{
		{"pod", must[state.Pod](t)(m.Pod(podID)).Steps, []string{"record the intent", "make namespaces", "connect network", "write files"}},
		{
			"container", must[state.Container](t)(m.Container(id)).Steps,
			[]string{"mount root file system", "compute and write specification", "make process (shim and engine)", "execute program"},
		},
		{"container's engine", must[state.Container](t)(m.Container(id)).EngineSteps, []string{"clone"}},
	} {
		for _, want := range tc.want {
			if !slices.ContainsFunc(tc.steps, func(s state.Step) bool { return s.What == want && s.Took >= 0 && !s.Began.IsZero() }) {
				t.Errorf("%s: no step %q in %v", tc.of, want, tc.steps)
			}
		}
	}
	ok(t, m.Stop(t.Context(), podID))
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}
