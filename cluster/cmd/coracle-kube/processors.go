package main

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

// processors is how many processors Go code runs on at a time: one while next to nothing is done,
// and otherwise as many as there are. With several, each timer that goes off wakes a second thread
// that looks for more to do: half of what an idle cluster costs.
type processors struct {
	set func(one bool)

	one atomic.Bool
	mu  sync.Mutex // protects changes of one, with set
}

// adaptProcessors returns nil if $GOMAXPROCS is set, which wins.
func adaptProcessors() *processors {
	if os.Getenv("GOMAXPROCS") != "" {
		return nil
	}
	return &processors{set: func(one bool) {
		if one {
			runtime.GOMAXPROCS(1)
		} else {
			runtime.SetDefaultGOMAXPROCS()
		}
	}}
}

// useAll is called when there is work for several, and when there is much. It is called often.
func (p *processors) useAll() { p.change(false) }

// useOne is called when next to nothing is done.
func (p *processors) useOne() { p.change(true) }

func (p *processors) change(one bool) {
	if p == nil || p.one.Load() == one {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.one.Load() != one {
		p.set(one)
		p.one.Store(one)
	}
}
