package shrink

import (
	"maps"
	"runtime"
	"testing"
)

// inUse is how many bytes of the heap are in use.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestGivesMemoryBack has many entries come and go. Of Go's own map the same test finds that it
// keeps its memory: otherwise this package is not needed any more.
func TestGivesMemoryBack(t *testing.T) {
	const entries, left = 100_000, 10
	for name, c := range map[string]struct {
		remove func(m *Map[int, int], key int)
		gives  bool
	}{
		"shrink.Map": {(*Map[int, int]).Delete, true},
		"Go's map":   {func(m *Map[int, int], key int) { delete(m.Entries, key) }, false},
	} {
		m, before := New[int, int](), inUse()
		for i := range entries {
			m.Entries[i] = i
		}
		full := inUse() - before
		for i := left; i < entries; i++ {
			c.remove(&m, i)
		}
		kept := inUse() - before
		if len(m.Entries) != left || full < entries*16 {
			t.Fatalf("%s: %d entries are left, %d bytes were in use", name, len(m.Entries), full)
		}
		if gives := kept < full/20; gives != c.gives {
			t.Errorf("%s: of %d bytes, %d are in use after the entries are deleted", name, full, kept)
		}
		runtime.KeepAlive(m)
	}
}

// TestKeepsEntries compares a map with one of Go's over many random-looking changes.
func TestKeepsEntries(t *testing.T) {
	m, want := New[int, int](), map[int]int{}
	copies := 0
	for i, x := 0, uint32(1); i < 200_000; i++ {
		x = x*1664525 + 1013904223
		key := int(x>>16) % 4096
		if i/20_000%2 == 0 { // it grows, then shrinks
			m.Entries[key], want[key] = i, i
			continue
		}
		most := m.most
		m.Delete(key)
		if m.most < most {
			copies++
		}
		delete(want, key)
		if len(m.Entries) != len(want) {
			t.Fatalf("%d entries, want %d", len(m.Entries), len(want))
		}
	}
	if !maps.Equal(m.Entries, want) || copies == 0 {
		t.Errorf("%d entries, want the same %d; %d copies", len(m.Entries), len(want), copies)
	}
}

// TestSmallIsNotCopied checks that maps of usual size do not pay.
func TestSmallIsNotCopied(t *testing.T) {
	m := New[int, int]()
	for i := range large - 1 {
		m.Entries[i] = i
	}
	entries := m.Entries
	for i := range large - 1 {
		m.Delete(i)
	}
	if entries[0] = 1; len(m.Entries) != 1 {
		t.Error("a small map was copied")
	}
}
