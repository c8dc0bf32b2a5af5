package main

import (
	"slices"
	"testing"
	"time"
)

func TestPacer(t *testing.T) {
	now := time.Now()
	var set []int
	p := &pacer{last: now, set: func(percent int) { set = append(set, percent) }}
	for _, gap := range []time.Duration{
		time.Minute, time.Second, // idle
		100 * time.Millisecond, 100 * time.Millisecond, // busy
		time.Second, time.Second, // still
		time.Minute, time.Minute, // idle again
		10 * time.Millisecond,
	} {
		now = now.Add(gap)
		p.collected(now)
	}
	if want := []int{busyPercent, gcPercent, busyPercent}; !slices.Equal(set, want) {
		t.Errorf("set to %v, want %v", set, want)
	}
}
