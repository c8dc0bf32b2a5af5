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
	p := &pacer{last: now, percent: gcPercent, set: func(percent int) { set = append(set, percent) }}
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
		{100 * time.Millisecond, 10 * busyRoom},
		{100 * time.Millisecond, small}, // and with less
		{time.Minute, 10 * busyRoom},    // idle with much in use
	} {
		now = now.Add(c.gap)
		p.collected(now, c.live)
	}
	if want := []int{
		idlePercent, gcPercent, busyPercent, gcPercent, idlePercent, busyPercent, 100, 80, gcPercent,
		busyPercent, idlePercent,
	}; !slices.Equal(set, want) {
		t.Errorf("set to %v, want %v", set, want)
	}
}

// Memory is given back by two collections in a row. That is no work.
func TestCollectionsThatWereAskedForAreNoWork(t *testing.T) {
	now := time.Now()
	var set []int
	p := &pacer{last: now, percent: gcPercent, set: func(percent int) { set = append(set, percent) }}
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

// A busy heap grows by less than it may in all, or by the least share.
func TestBusyHeapHasABound(t *testing.T) {
	for live := uint64(1 << 20); live < 4<<30; live += 1 << 20 {
		percent := whileBusy(live)
		garbage := live * uint64(percent) / 100
		if percent > busyPercent || percent < gcPercent || percent > gcPercent && garbage > busyRoom {
			t.Fatalf("with %d MB in use: %d %%, %d MB of garbage", live>>20, percent, garbage>>20)
		}
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
