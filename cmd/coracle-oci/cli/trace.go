package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
)

// stopwatch times the steps of an invocation for --trace-steps.
type stopwatch struct {
	last  time.Time
	steps []runtime.Step
	// later prints what the engine told: printing in between would count as a step.
	later []func()
}

// begin is called first in main. What the kernel and the Go runtime did before is known as CPU
// time only.
func (s *stopwatch) begin() {
	s.last = time.Now()
	var before unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &before); err == nil {
		s.steps = append(s.steps, runtime.Step{What: "load the program (CPU time)", Took: time.Duration(before.Nano())})
	}
}

// lap ends a step.
func (s *stopwatch) lap(what string) {
	now := time.Now()
	s.steps = append(s.steps, runtime.Step{What: what, Took: now.Sub(s.last)})
	s.last = now
}

// printSteps prints --trace-steps of the invocation as a whole.
func (a *app) printSteps() {
	for _, print := range a.watch.later {
		print()
	}
	if a.traceSteps && len(a.watch.steps) > 1 {
		printSteps(a.stderr, "in all", a.watch.steps, nil)
	}
}

// trace prints --trace-steps of the engine.
func (a *app) trace() engine.Trace {
	if !a.traceSteps {
		return nil
	}
	return func(what string, ours, inside []runtime.Step) {
		a.watch.later = append(a.watch.later, func() { printSteps(a.stderr, what, ours, inside) })
	}
}

// printSteps prints steps, and those of the container's process below that of its plan.
func printSteps(to io.Writer, what string, ours, inside []runtime.Step) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	defer w.Flush()
	var total time.Duration
	for _, s := range ours {
		total += s.Took
	}
	_, _ = fmt.Fprintf(w, "%s\t%v\n", what, total.Round(time.Microsecond))
	for _, s := range ours {
		_, _ = fmt.Fprintf(w, "  %s\t%v\n", s.What, s.Took.Round(time.Microsecond))
		if s.What != "the plan" {
			continue
		}
		for _, in := range inside {
			_, _ = fmt.Fprintf(w, "    %s\t%v\n", in.What, in.Took.Round(time.Microsecond))
		}
	}
}
