package pod

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// Pods are the pods that fit f as they are at the time of the call, newest first. They are made one
// by one, for they are large.
func (m *Manager) Pods(f PodFilter) iter.Seq[Pod] {
	vs := m.podVersions(f)
	return func(yield func(Pod) bool) {
		for _, v := range vs {
			if !yield(v.record.value()) {
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
			if !yield(v.record.value()) {
				return
			}
		}
	}
}

// PodItems are Pods as encode has them on its wire: asked once for each state that a pod is in, not
// once a list. All callers must have the same encode, and no one may change the bytes.
func (m *Manager) PodItems(f PodFilter, encode func(*Pod) ([]byte, error)) ([][]byte, error) {
	return items(m.podVersions(f), func(r *podRecord) ([]byte, error) {
		p := r.value()
		return encode(&p)
	})
}

// ContainerItems are Containers, as PodItems has them.
func (m *Manager) ContainerItems(f ContainerFilter, encode func(*Container) ([]byte, error)) ([][]byte, error) {
	return items(m.containerVersions(f), func(r *containerRecord) ([]byte, error) {
		c := r.value()
		return encode(&c)
	})
}

func (m *Manager) podVersions(f PodFilter) []*version[podRecord] {
	return newestFirst(m.pods.versions(f.fits), func(r *podRecord) (time.Time, string) { return r.CreatedAt, r.ID })
}

func (m *Manager) containerVersions(f ContainerFilter) []*version[containerRecord] {
	return newestFirst(m.containers.versions(f.fits), func(r *containerRecord) (time.Time, string) { return r.CreatedAt, r.ID })
}

// newestFirst sorts versions by when they were created, and by ids if that is the same. What they
// are sorted by stands together in memory, for there may be thousands.
func newestFirst[T any](vs []*version[T], born func(*T) (created time.Time, id string)) []*version[T] {
	type dated struct {
		nanos int64
		id    string
		v     *version[T]
	}
	all := make([]dated, len(vs))
	for i, v := range vs {
		created, id := born(&v.record)
		all[i] = dated{created.UnixNano(), id, v}
	}
	slices.SortFunc(all, func(a, b dated) int {
		if a.nanos != b.nanos {
			return cmp.Compare(b.nanos, a.nanos)
		}
		return cmp.Compare(a.id, b.id)
	})
	for i, d := range all {
		vs[i] = d.v
	}
	return vs
}

func items[T any](vs []*version[T], encode func(*T) ([]byte, error)) ([][]byte, error) {
	all := make([][]byte, len(vs))
	for i, v := range vs {
		item := v.item.Load()
		if item == nil {
			b, err := encode(&v.record)
			if err != nil {
				return nil, err
			}
			item = &b
			v.item.Store(item)
		}
		all[i] = *item
	}
	return all, nil
}
