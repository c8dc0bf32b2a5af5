package main

import (
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMemoryIsGivenBackAfterWork(t *testing.T) {
	var l lull
	var cpu time.Duration
	var pages int64
	var over []int
	for i, step := range []struct {
		cpu   time.Duration
		pages int64
	}{
		{2 * time.Second, 60_000},       // the start
		{50 * time.Millisecond, 2000},   // rest: what is needed comes back
		{50 * time.Millisecond, 1000},   //
		{8 * time.Second, 100_000},      // a burst
		{time.Second, 10_000},           //
		{100 * time.Millisecond, 100},   // it is over
		{100 * time.Millisecond, 2000},  // rest
		{100 * time.Millisecond, 2000},  //
		{100 * time.Millisecond, 100},   //
		{3000 * time.Millisecond, 3000}, // work that leaves little
		{100 * time.Millisecond, 1000},  //
		{100 * time.Millisecond, 200},   // enough for once more
	} {
		cpu, pages = cpu+step.cpu, pages+step.pages*4096/int64(os.Getpagesize())
		if l.over(l.busy(cpu), pages) {
			l.pages = pages
			over = append(over, i)
		}
	}
	if want := []int{0, 5, 11}; !slices.Equal(over, want) {
		t.Errorf("given back at %v, want %v", over, want)
	}
}

func TestUsed(t *testing.T) {
	// Not of the heap, whose pages may be there since an earlier test.
	held, err := unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(held) }()
	cpu, pages := used()
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	later, more := used()
	if later <= cpu || more-pages < 64<<20/4096/2 && more-pages < 32 { // large pages are fewer
		t.Errorf("64 MB took %v and %d pages", later-cpu, more-pages)
	}
}
