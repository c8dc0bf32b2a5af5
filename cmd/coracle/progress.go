package main

import (
	"fmt"
	"io"
	"time"
)

// steps prints what is done, with the time that has passed since the beginning.
type steps struct {
	out   io.Writer
	began time.Time
}

func newSteps(out io.Writer) *steps { return &steps{out: out, began: time.Now()} }

func (s *steps) done(what string) {
	_, _ = fmt.Fprintf(s.out, "%6.2fs  %s\n", time.Since(s.began).Seconds(), what)
}

// node prints that a node is ready, or that its network is missing.
func (s *steps) node(name, ready, waits string) {
	if waits != "" {
		s.waits("node " + name + ": " + waits)
		return
	}
	s.done("node " + name + " is " + ready)
}

// waits prints what something that is not done waits for.
func (s *steps) waits(what string) { s.done("… " + what) }
