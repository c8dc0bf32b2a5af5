package pod

import (
	"slices"
	"testing"

	"github.com/coracle-project/coracle/pod/state"
)

// encodeOnce notes what it is asked to encode.
type encodeOnce struct{ asked []string }

func (x *encodeOnce) pod(p *state.Pod) ([]byte, error) { return x.note(p.ID + string(p.State)) }
func (x *encodeOnce) container(c *state.Container) ([]byte, error) {
	return x.note(c.ID + string(c.State))
}

func (x *encodeOnce) note(what string) ([]byte, error) {
	x.asked = append(x.asked, what)
	return []byte(what), nil
}

// expect looks at a list, and at how much of it was encoded for it.
func (x *encodeOnce) expect(t *testing.T, what string, asked int, want ...string) func(got [][]byte, err error) {
	return func(got [][]byte, err error) {
		t.Helper()
		var texts []string
		for _, b := range got {
			texts = append(texts, string(b))
		}
		if err != nil || !slices.Equal(texts, want) {
			t.Errorf("%s: %q, %v, want %q", what, texts, err, want)
		}
		if len(x.asked) != asked {
			t.Errorf("%s: encoded %q, want %d", what, x.asked, asked)
		}
		x.asked = nil
	}
}

// Lists have the newest first, and what was encoded for one list is used for others.
func TestItems(t *testing.T) {
	w := newBench(t)
	m, _ := w.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	c := containerConfig("run")
	first := must[string](t)(m.Create(ctx, podID, c))
	c.Attempt++
	second := must[string](t)(m.Create(ctx, podID, c))

	var x encodeOnce
	all := state.ContainerFilter{}
	x.expect(t, "first list", 2, second+"created", first+"created")(m.ContainerItems(all, x.container))
	x.expect(t, "filter by id", 0, first+"created")(m.ContainerItems(state.ContainerFilter{ID: first[:20]}, x.container))
	x.expect(t, "filter by state", 0)(m.ContainerItems(state.ContainerFilter{State: state.Running}, x.container))
	x.expect(t, "filter by label", 0)(m.ContainerItems(state.ContainerFilter{Labels: map[string]string{"no": "such"}}, x.container))
	ok(t, m.StartContainer(ctx, second))
	x.expect(t, "one has changed", 1, second+"running", first+"created")(m.ContainerItems(all, x.container))

	x.expect(t, "pods", 1, podID+"ready")(m.PodItems(state.PodFilter{}, x.pod))
	x.expect(t, "pods again", 0, podID+"ready")(m.PodItems(state.PodFilter{ID: podID, State: state.Ready}, x.pod))
	ok(t, m.Stop(ctx, podID))
	x.expect(t, "no pod is ready", 0)(m.PodItems(state.PodFilter{State: state.Ready}, x.pod))
	x.expect(t, "pod has stopped", 1, podID+"notready")(m.PodItems(state.PodFilter{}, x.pod))
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}
