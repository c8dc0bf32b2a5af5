package stats

import (
	"slices"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod/reading"
)

// TestSumOfDevices: containers that use the same device make one entry of it.
func TestSumOfDevices(t *testing.T) {
	of := func(minor uint64) cgstat.Device {
		return cgstat.Device{Name: "d", Major: 8, Minor: minor, ReadBytes: 1, WriteBytes: 2, Reads: 3, Writes: 4}
	}
	got := sum([]Container{
		{Usage: cgstat.Usage{Devices: []cgstat.Device{of(0), of(1)}}},
		{Usage: cgstat.Usage{Devices: []cgstat.Device{of(1)}}},
	}).Devices
	both := cgstat.Device{Name: "d", Major: 8, Minor: 1, ReadBytes: 2, WriteBytes: 4, Reads: 6, Writes: 8}
	if want := []cgstat.Device{of(0), both}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestRate(t *testing.T) {
	at := time.Unix(100, 0)
	of := func(total, before time.Duration, span time.Duration) *uint64 {
		return rate(&reading.Reading[cgstat.Usage]{
			Val:    cgstat.Usage{Time: at.Add(span), CPU: cgstat.CPU{Total: total}},
			Before: &reading.Earlier[cgstat.Usage]{Val: cgstat.Usage{Time: at, CPU: cgstat.CPU{Total: before}}},
		})
	}
	if got := of(3*time.Second, time.Second, 4*time.Second); got == nil || *got != 5e8 {
		t.Errorf("half a processor is %v", got)
	}
	for name, got := range map[string]*uint64{
		"counter that fell":   of(0, time.Second, time.Second),
		"clock that stood":    of(1, 0, 0),
		"one reading":         rate(&reading.Reading[cgstat.Usage]{}),
		"clock set backwards": of(2, 1, -time.Second),
	} {
		if got != nil {
			t.Errorf("%s: %d", name, *got)
		}
	}
}
