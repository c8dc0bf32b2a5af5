package pod

import (
	"errors"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

func TestUnknownAndAmbiguousIDs(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	for name, call := range map[string]func(id string) error{
		"Pod":             func(id string) error { _, err := m.Pod(id); return err },
		"Container":       func(id string) error { _, err := m.Container(id); return err },
		"Create":          func(id string) error { _, err := m.Create(ctx, id, containerConfig("run")); return err },
		"StartContainer":  func(id string) error { return m.StartContainer(ctx, id) },
		"Stats":           func(id string) error { _, err := m.Stats(ctx, id); return err },
		"UpdateResources": func(id string) error { return m.UpdateResources(ctx, id, podconfig.Resources{}, nil) },
	} {
		if err := call("feedbeef"); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s of an unknown id: %v", name, err)
		}
		if err := call(""); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s of an empty id: %v", name, err)
		}
	}
	// Of 17 ids two begin alike.
	first := map[byte]bool{}
	var twice string
	for i := range 17 {
		cfg := podConfig("p")
		cfg.Attempt = uint32(i)
		id := must[string](t)(m.Run(ctx, cfg))
		if first[id[0]] {
			twice = id[:1]
		}
		first[id[0]] = true
	}
	if _, err := m.Pod(twice); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("ambiguous prefix: %v", err)
	}
	if err := m.Stop(ctx, twice); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("stop by an ambiguous prefix: %v", err)
	}
	for p := range m.Pods(state.PodFilter{}) {
		ok(t, m.Remove(ctx, p.ID))
	}
}
