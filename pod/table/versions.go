package table

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// NewestFirst sorts versions by when they were created, and by ids if that is the same. What they
// are sorted by lies together in memory, for there may be thousands.
func NewestFirst[T any](vs []*Version[T], born func(*T) (created time.Time, id string)) []*Version[T] {
	type dated struct {
		nanos int64
		id    string
		v     *Version[T]
	}
	all := make([]dated, len(vs))
	for i, v := range vs {
		created, id := born(&v.Record)
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

// Items encodes each version once and keeps the bytes, which must not be changed.
func Items[T any](vs []*Version[T], encode func(*T) ([]byte, error)) ([][]byte, error) {
	all := make([][]byte, len(vs))
	for i, v := range vs {
		item := v.item.Load()
		if item == nil {
			b, err := encode(&v.Record)
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

// Version is a record that readers see, until there is a next.
type Version[T any] struct {
	Record T
	// item is what Items has made of it, nil if it was not asked: about as
	// much memory again as its labels and annotations, and less than each list of them took.
	item atomic.Pointer[[]byte]
}
