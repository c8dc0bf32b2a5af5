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
	// Exe is the path of its program, which ends in " (deleted)" if that is not there any more; empty
	// if it cannot be read.
	Exe string
	// Args are what it was started with, or says since, its program's name first.
	Args []string
}

// Program is the name of the file that the process executes.
func (p Process) Program() string { return filepath.Base(strings.TrimSuffix(p.Exe, " (deleted)")) }

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
		if err != nil || len(line) == 0 {
			continue
		}
		exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		all = append(all, Process{pid, exe, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")})
	}
	slices.SortFunc(all, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	return all
}
