package quiet

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// A machine whose CPUs are all busy is not quiet.
func TestQuiet(t *testing.T) {
	before, err := busyTime()
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	for range runtime.NumCPU() {
		go func() {
			for !stop.Load() { // burn
			}
		}()
	}
	inUse, err := wait(t.Context(), 0, Busy)
	anyway := Below(t.Context(), float64(runtime.NumCPU())+1)
	stop.Store(true)
	if after, _ := busyTime(); after <= before {
		t.Errorf("the CPUs were busy for %s, then for %s", before, after)
	}
	if err == nil {
		t.Error("a busy machine was taken for a quiet one")
	}
	if inUse < Busy {
		t.Errorf("%.2f CPUs are said to be in use", inUse)
	}
	if anyway != nil {
		t.Errorf("with all CPUs as the limit: %v", anyway)
	}
}
