package network

import (
	"slices"
	"testing"
)

// When messages were lost, whatever they may have said is looked up.
func TestLostMessages(t *testing.T) {
	var gone []string
	uplinks := 0
	c := newChanges(quiet, func(podID string) { gone = append(gone, podID) }, func() { uplinks++ }, nil)
	c.pods["cor-is-gone"], c.pods["lo"] = "a", "b"
	c.rescan()
	if !slices.Equal(gone, []string{"a"}) || uplinks != 1 || len(c.pods) != 1 || len(c.peers) != 1 {
		t.Errorf("told of %v, looked at uplinks %d times, waiting for %v", gone, uplinks, c.pods)
	}
	c.rescan()
	if len(gone) != 1 {
		t.Errorf("told twice: %v", gone)
	}
}

// What a message does not parse as, is not one.
func FuzzChanges(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{20, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, data []byte) {
		c := newChanges(quiet, func(string) {}, func() {}, nil)
		c.pods["lo"] = "a"
		c.read(data)
	})
}
