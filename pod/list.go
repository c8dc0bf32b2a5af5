package pod

import (
	"iter"
	"time"

	"github.com/coracle-project/coracle/pod/table"
)

// Pods are the pods that fit f as they are at the time of the call, newest first. They are made one
// by one, for they are large.
func (m *Manager) Pods(f PodFilter) iter.Seq[Pod] {
	vs := m.podVersions(f)
	return func(yield func(Pod) bool) {
		for _, v := range vs {
			if !yield(v.Record.value()) {
				return
			}
		}
	}
}

// Containers are the containers that fit f, as Pods has them.
func (m *Manager) Containers(f ContainerFilter) iter.Seq[Container] {
	vs := m.containerVersions(f)
	return func(yield func(Container) bool) {
		for _, v := range vs {
			if !yield(v.Record.value()) {
				return
			}
		}
	}
}

// PodItems are Pods as encode has them on its wire: asked once for each state that a pod is in, not
// once a list. All callers must have the same encode, and no one may change the bytes.
func (m *Manager) PodItems(f PodFilter, encode func(*Pod) ([]byte, error)) ([][]byte, error) {
	return table.Items(m.podVersions(f), func(r *podRecord) ([]byte, error) {
		p := r.value()
		return encode(&p)
	})
}

// ContainerItems are Containers, as PodItems has them.
func (m *Manager) ContainerItems(f ContainerFilter, encode func(*Container) ([]byte, error)) ([][]byte, error) {
	return table.Items(m.containerVersions(f), func(r *containerRecord) ([]byte, error) {
		c := r.value()
		return encode(&c)
	})
}

func (m *Manager) podVersions(f PodFilter) []*table.Version[podRecord] {
	return table.NewestFirst(m.pods.Versions(f.fits), func(r *podRecord) (time.Time, string) { return r.CreatedAt, r.ID })
}

func (m *Manager) containerVersions(f ContainerFilter) []*table.Version[containerRecord] {
	return table.NewestFirst(m.containers.Versions(f.fits), func(r *containerRecord) (time.Time, string) { return r.CreatedAt, r.ID })
}
