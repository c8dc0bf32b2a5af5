package main

import (
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// cpus is how many the machine has.
var cpus = runtime.NumCPU()

// newReport begins the report of a part of the page. given is what the text says besides.
func newReport(o options, part page.Part, given map[string]any, tables ...page.Table) *page.Report {
	m := page.Machine{CPUs: cpus, Busy: o.busy, LoadBefore: loadAverage()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			m.Model = strings.TrimSpace(v)
			break
		}
	}
	return &page.Report{
		Date: time.Now().UTC().Format(time.DateOnly), Machine: m, Versions: map[string]string{},
		Part: part, Given: given, Tables: tables,
	}
}

// finish prints the tables, and writes what is asked for.
func finish(rep *page.Report, o options) error {
	rep.Machine.LoadAfter = loadAverage()
	return rep.Finish(o.out, o.md)
}

func loadAverage() string {
	raw, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(raw), " ")
	return first
}
