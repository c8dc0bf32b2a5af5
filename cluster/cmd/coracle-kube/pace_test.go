package main

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestPacer(t *testing.T) {
	now := time.Now()
	var set []int
	var huge []bool
	p := &pacer{
		last: now, percent: gcPercent, memory: 15 << 30,
		set:   func(percent int) { set = append(set, percent) },
		pages: func(h bool) error { huge = append(huge, h); return nil },
	}
	const small = 30 << 20
	for _, c := range []struct {
		gap  time.Duration
		live uint64
	}{
		{time.Minute, small},
		{time.Second, small}, // idle
		{100 * time.Millisecond, small},
		{100 * time.Millisecond, small}, // busy
		{time.Second, small},
		{time.Second, small}, // still
		{2 * late, small},    // little to do
		{time.Minute, small},
		{time.Minute, small}, // idle again
		{10 * time.Millisecond, small},
		{100 * time.Millisecond, busyRoom}, // busy with more and more
		{100 * time.Millisecond, busyRoom * 101 / 100},
		{time.Minute, largeHeap}, // little to do, and idle
		{10 * time.Second, largeHeap},
		{3 * soon, largeHeap},             // busy, as it takes longer to make as much garbage
		{3 * late, largeHeap},             // still
		{late, 8 * largeHeap},             // with much more
		{soon, 20 * largeHeap},            // more than the machine has room for
		{5 * late, 8 * largeHeap},         // still
		{2 * time.Minute, 20 * largeHeap}, // little to do, and idle; no gap is longer
	} {
		now = now.Add(c.gap)
		p.collected(now, c.live)
	}
	if want := []int{
		idlePercent, gcPercent, busyPercent, gcPercent, idlePercent, busyPercent, 100, 80,
		idlePercent, gcPercent, largePercent, 80, gcPercent, 80, idlePercent,
	}; !slices.Equal(set, want) {
		t.Errorf("set to %v, want %v", set, want)
	}
	// While there is much to do with a large heap.
	if want := slices.Concat(make([]bool, 14), []bool{true, true, true, true, true, false}); !slices.Equal(huge, want) {
		t.Errorf("huge pages: %v, want %v", huge, want)
	}
}

// Memory is given back by two collections in a row. That is no work.
func TestCollectionsThatWereAskedForAreNoWork(t *testing.T) {
	now := time.Now()
	var set []int
	p := &pacer{
		last: now, percent: gcPercent, set: func(percent int) { set = append(set, percent) }, pages: func(bool) error { return nil },
	}
	const small = 30 << 20
	for range 3 {
		now = now.Add(100 * time.Millisecond)
		p.collected(now, small)
	}
	now = now.Add(20 * time.Second)
	p.collected(now, small)
	p.collected(now.Add(50*time.Millisecond), small)
	p.rest(now.Add(100 * time.Millisecond))
	p.collected(now.Add(110*time.Millisecond), small) // told late
	p.collected(now.Add(time.Second), small)
	if want := []int{busyPercent, gcPercent, busyPercent, idlePercent, gcPercent}; !slices.Equal(set, want) {
		t.Errorf("set to %v, want %v", set, want)
	}
}

// The garbage of a small heap has a bound while it is busy. That of a large one takes a share of
// the machine's memory, but always gcPercent.
func TestBusyHeapHasABound(t *testing.T) {
	p := &pacer{memory: 8 << 30}
	for live, percent := range map[uint64]int{
		30: 200, 100: 120, 150: 80, 400: 60, 511: 60, 512: 120, 1700: 120, 2048: 100, 2500: 80, 4096: 60,
	} {
		if got := p.whileBusy(live << 20); got != percent {
			t.Errorf("with %d MB in use: %d %%, want %d", live, got, percent)
		}
	}
	if got := (&pacer{}).whileBusy(1 << 30); got != gcPercent {
		t.Errorf("on a machine of unknown size: %d %%", got)
	}
}

func TestLiveHeap(t *testing.T) {
	collect := func() { // what has a finalizer goes with the second
		runtime.GC()
		runtime.GC()
	}
	collect()
	before := liveHeap()
	held := make([]byte, 256<<20) // what others leave meanwhile does not matter
	collect()
	if grown := liveHeap() - before; grown < 230<<20 || grown > 280<<20 {
		t.Errorf("256 MB more are in use, and %d MB were found", grown>>20)
	}
	runtime.KeepAlive(held)
}
