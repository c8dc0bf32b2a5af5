// Package shrink has maps that give memory back. Go's own maps never shrink: one that held a
// thousand pods for a minute keeps the memory for a thousand.
package shrink

import "maps"

const (
	// large is how many entries a map must have had for it to be worth a copy.
	large = 512
	// few is how many times fewer than that are left when the map is copied. So each entry that
	// was deleted pays for the copy of a seventh of an entry.
	few = 8
)

// Map is a map that shrinks. Entries is read and written as any map is, but entries are deleted by
// Delete. Like Go's maps, it is not for concurrent use.
type Map[K comparable, V any] struct {
	Entries map[K]V
	most    int // entries that it has had since it was made or copied, as far as Delete knows
}

// New returns an empty map.
func New[K comparable, V any]() Map[K, V] { return Map[K, V]{Entries: map[K]V{}} }

// Delete deletes an entry, if there is one. When it makes Entries a smaller copy, a loop over
// Entries that is under way goes on with the old one: it may come to entries that are deleted
// meanwhile.
func (m *Map[K, V]) Delete(key K) {
	m.most = max(m.most, len(m.Entries))
	delete(m.Entries, key)
	if left := len(m.Entries); m.most >= large && left <= m.most/few {
		smaller := make(map[K]V, left)
		maps.Copy(smaller, m.Entries)
		m.Entries, m.most = smaller, left
	}
}
