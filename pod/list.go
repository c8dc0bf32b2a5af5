package pod

import (
	"iter"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
)

// Pods are the pods that fit f as they are at the time of the call, newest first. They are made one
// by one, for they are large.
func (m *Manager) Pods(f state.PodFilter) iter.Seq[state.Pod] {
	vs := m.podVersions(f)
	return func(yield func(state.Pod) bool) {
		for _, v := range vs {
			if !yield(v.Record.Value()) {
				return
			}
		}
	}
}

// Containers are the containers that fit f, as Pods has them.
func (m *Manager) Containers(f state.ContainerFilter) iter.Seq[state.Container] {
	vs := m.containerVersions(f)
	return func(yield func(state.Container) bool) {
		for _, v := range vs {
			if !yield(v.Record.Value()) {
				return
			}
		}
	}
}

// PodItems are Pods as encode has them on its wire: asked once for each state that a pod is in, not
// once a list. All callers must have the same encode, and no one may change the bytes.
func (m *Manager) PodItems(f state.PodFilter, encode func(*state.Pod) ([]byte, error)) ([][]byte, error) {
	return table.Items(m.podVersions(f), func(r *state.PodRecord) ([]byte, error) {
		p := r.Value()
		return encode(&p)
	})
}

// ContainerItems are Containers, as PodItems has them.
func (m *Manager) ContainerItems(f state.ContainerFilter, encode func(*state.Container) ([]byte, error)) ([][]byte, error) {
	return table.Items(m.containerVersions(f), func(r *state.ContainerRecord) ([]byte, error) {
		c := r.Value()
		return encode(&c)
	})
}

func (m *Manager) podVersions(f state.PodFilter) []*table.Version[state.PodRecord] {
	return table.NewestFirst(m.pods.Versions(f.Fits), func(r *state.PodRecord) (time.Time, string) { return r.CreatedAt, r.ID })
}

func (m *Manager) containerVersions(f state.ContainerFilter) []*table.Version[state.ContainerRecord] {
	return table.NewestFirst(m.containers.Versions(f.Fits), func(r *state.ContainerRecord) (time.Time, string) { return r.CreatedAt, r.ID })
}
