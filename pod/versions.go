package pod

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

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

// version is a record that readers see, until there is a next.
type version[T any] struct {
	record T
	// item is what PodItems or ContainerItems has made of it, nil if neither was asked: about as
	// much memory again as its labels and annotations, and less than each list of them took.
	item atomic.Pointer[[]byte]
}
