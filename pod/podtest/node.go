// Package podtest has what the tests of pod/'s parts share: the pods and containers of a node,
// without a Manager. Only tests import it.
package podtest

import (
	"log/slog"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/reserve"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
)

// Node is what all parts work on: the pods and containers, their records in a temporary state
// directory, and the life and the background work of a daemon.
type Node struct {
	Dirs       state.Layout
	Pods       *state.PodTable
	Containers *state.ContainerTable
	Reserve    *reserve.Reserve
	Life       *life.Life
	Clean      *life.Cleaner
	Log        *slog.Logger

	t testing.TB
}

// NewNode makes a node without pods. Its life ends with the test.
func NewNode(t testing.TB) *Node {
	t.Helper()
	dir, log, l := t.TempDir(), slog.New(slog.DiscardHandler), life.New()
	t.Cleanup(l.End)
	return &Node{
		Dirs: state.Layout(dir), Reserve: reserve.New(dir, log), Life: l, Clean: life.NewCleaner(l, 2, log), Log: log, t: t,
		Pods: table.New("pod", (*state.PodRecord).Visible), Containers: table.New("container", (*state.ContainerRecord).Visible),
	}
}

// Pod adds a ready pod, with its record as changed.
func (n *Node) Pod(change ...func(*state.PodRecord)) *state.PodEntry {
	n.t.Helper()
	rec := state.PodRecord{ID: table.NewID(), Phase: state.PodReady}
	for _, c := range change {
		c(&rec)
	}
	e := table.NewEntry(rec.ID, n.Dirs.Pods(), n.Reserve, rec, func(_, _ *state.PodRecord) {})
	if _, ok := n.Pods.Add(rec.ID, e); !ok {
		n.t.Fatal("two pods with the same id")
	}
	OK(n.t, n.Dirs.Pods().Make(rec.ID))
	OK(n.t, e.Update(func(*state.PodRecord) {}))
	return e
}

// Container adds a running container to a pod, with its record as changed and a bundle of a
// process "run".
func (n *Node) Container(p *state.PodEntry, change ...func(*state.ContainerRecord)) *state.ContainerEntry {
	n.t.Helper()
	rec := state.ContainerRecord{ID: table.NewID(), PodID: p.ID, Phase: state.ContainerRunning}
	for _, c := range change {
		c(&rec)
	}
	e := table.NewEntry(rec.ID, n.Dirs.Containers(), n.Reserve, rec, func(_, _ *state.ContainerRecord) {})
	if _, ok := n.Containers.Add(rec.ID, e); !ok {
		n.t.Fatal("two containers with the same id")
	}
	OK(n.t, n.Dirs.Containers().Make(rec.ID))
	OK(n.t, e.Update(func(*state.ContainerRecord) {}))
	OK(n.t, ocispec.Write(n.Dirs.Containers().Of(rec.ID), &specs.Spec{
		Process: &specs.Process{Args: []string{"run"}, Env: []string{"A=image"}}, Linux: &specs.Linux{},
	}))
	return e
}

// In sets the phase of a container that Container adds.
func In(phase state.ContainerPhase) func(*state.ContainerRecord) {
	return func(r *state.ContainerRecord) { r.Phase = phase }
}

// OK ends the test at an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns a call's value, or ends the test at its error.
func Must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		OK(t, err)
		return v
	}
}
