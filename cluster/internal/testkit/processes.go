package testkit

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Process is one of this process namespace.
type Process struct {
	PID int
	// Args are what it was started with, its program's path first.
	Args []string
}

// Line is the process as ps shows it.
func (p Process) Line() string { return strings.Join(p.Args, " ") }

// Processes are those of this process namespace, by their ids. Those that have no arguments are
// left out: kernel threads, and what has ended.
func Processes() (all []Process) {
	entries, _ := os.ReadDir("/proc") // without it there are none
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && len(line) > 0 {
			all = append(all, Process{pid, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")})
		}
	}
	slices.SortFunc(all, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	return all
}
