package pod

import (
	"testing"

	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// BenchmarkLife is what the manager itself costs in a pod's life: everything below it
// takes no time.
func BenchmarkLife(b *testing.B) {
	w := newBench(b)
	m, _ := w.manager()
	ctx := b.Context()
	for b.Loop() {
		podID := must[string](b)(m.Run(ctx, podConfig("p")))
		id := must[string](b)(m.Create(ctx, podID, containerConfig("run")))
		ok(b, m.StartContainer(ctx, id))
		ok(b, m.Stop(ctx, podID))
		ok(b, m.Remove(ctx, podID))
	}
	idle(b, m)
	w.nothingLeft()
}

func BenchmarkCreate(b *testing.B) {
	w := newBench(b)
	m, _ := w.manager()
	ctx := b.Context()
	podID := must[string](b)(m.Run(ctx, podConfig("p")))
	c := containerConfig("run")
	c.Security.Seccomp.Type = podconfig.ProfileRuntimeDefault
	for b.Loop() {
		c.Attempt++
		must[string](b)(m.Create(ctx, podID, c))
	}
	ok(b, m.Remove(ctx, podID))
	idle(b, m)
}

// BenchmarkLists lists a thousand containers, as values and as a kubelet has them.
func BenchmarkLists(b *testing.B) {
	w := newBench(b)
	m, _ := w.manager()
	ctx := b.Context()
	podID := must[string](b)(m.Run(ctx, podConfig("p")))
	c := containerConfig("run")
	for c.Attempt = range uint32(1000) {
		must[string](b)(m.Create(ctx, podID, c))
	}
	b.Run("values", func(b *testing.B) {
		for b.Loop() {
			n := 0
			for range m.Containers(state.ContainerFilter{}) {
				n++
			}
			if n != 1000 {
				b.Fatal(n)
			}
		}
	})
	b.Run("items", func(b *testing.B) {
		for b.Loop() {
			all, err := m.ContainerItems(state.ContainerFilter{}, func(c *state.Container) ([]byte, error) { return []byte(c.ID), nil })
			if err != nil || len(all) != 1000 {
				b.Fatal(len(all), err)
			}
		}
	})
	ok(b, m.Remove(ctx, podID))
	idle(b, m)
}
