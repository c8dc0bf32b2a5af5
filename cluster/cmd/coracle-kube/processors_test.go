package main

import (
	"runtime"
	"slices"
	"sync"
	"testing"
)

func TestProcessors(t *testing.T) {
	var set []bool
	p := &processors{set: func(one bool) { set = append(set, one) }}
	p.useAll()
	p.useOne()
	p.useOne()
	var calls sync.WaitGroup
	for range 10 {
		calls.Go(p.useAll)
	}
	calls.Wait()
	p.useOne()
	if want := []bool{true, false, true}; !slices.Equal(set, want) {
		t.Errorf("set to one: %v, want %v", set, want)
	}
}

func TestProcessorsOfThisProcess(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	runtime.SetDefaultGOMAXPROCS() // the caller's environment may have set another number
	all := runtime.GOMAXPROCS(0)
	p := adaptProcessors()
	defer p.useAll()
	if p.useOne(); runtime.GOMAXPROCS(0) != 1 {
		t.Errorf("%d processors at rest, want 1", runtime.GOMAXPROCS(0))
	}
	if p.useAll(); runtime.GOMAXPROCS(0) != all {
		t.Errorf("%d processors under load, want %d", runtime.GOMAXPROCS(0), all)
	}
}

// What the user has set stays.
func TestProcessorsOfTheUser(t *testing.T) {
	t.Setenv("GOMAXPROCS", "3")
	all := runtime.GOMAXPROCS(0)
	p := adaptProcessors()
	if p.useOne(); runtime.GOMAXPROCS(0) != all {
		t.Errorf("%d processors, want the user's", runtime.GOMAXPROCS(0))
	}
	p.useAll()
}
