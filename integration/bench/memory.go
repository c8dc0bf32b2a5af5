package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-project/coracle/integration/bench/quiet"
	"github.com/coracle-project/coracle/internal/testkit"
)

// settle is how long a runtime gets, once it is quiet, to give memory back before it is read.
const settle = 3 * time.Second

// measureMemory has only this runtime up. Memory is PSS (proportional set size: shared pages count
// in part).
func measureMemory(ctx context.Context, t *target, o options) (err error) {
	c, err := t.up(ctx)
	if err != nil {
		return err
	}
	defer func() { err = joinDown(err, t) }()
	if err := rest(ctx); err != nil {
		return err
	}
	rss := residentSize(t.pid())
	// What is made once (a node's shim, pools) is there before the first reading.
	if err := c.warm(ctx, 5); err != nil {
		return err
	}
	if err := rest(ctx); err != nil {
		return err
	}
	idle, _ := runtimeMemory()
	held, _, err := together(ctx, t, 1, o.pods)
	if err != nil {
		return err
	}
	if _, err := quiet.Rest(ctx); err != nil { // among so many pods some runtimes are never quiet
		return err
	}
	if err := quiet.Pause(ctx, settle); err != nil {
		return err
	}
	busy, names := runtimeMemory()
	perPod := float64(busy-idle) / float64(o.pods)
	t.add(fmt.Sprintf("idle pod, at %d, kB", o.pods), perPod)
	t.add(fmt.Sprintf("the runtime at %d pods, MB", o.pods), float64(busy)/1024)
	t.add("RSS of the idle daemon, MB", float64(rss)/1024)
	t.say("%.0f kB per idle pod; PSS in kB at %d pods: %v", perPod, o.pods, names)
	return removeAll(ctx, c, held)
}

func rest(ctx context.Context) error {
	if err := quiet.Wait(ctx); err != nil {
		return err
	}
	return quiet.Pause(ctx, settle)
}

// runtimeMemory sums all processes in this process namespace except the payload,
// this program and its init, and the registry.
func runtimeMemory() (sum int64, byName map[string]int64) {
	byName = map[string]int64{}
	self, _ := os.Readlink("/proc/self/exe")
	for _, p := range testkit.Processes() {
		if p.Exe == "" || p.Exe == self || p.Program() == "registry" || slices.Equal(p.Args, []string{"/pause", marker}) {
			continue
		}
		kb := field(filepath.Join("/proc", strconv.Itoa(p.PID), "smaps_rollup"), "Pss:")
		byName[filepath.Base(p.Args[0])] += kb
		sum += kb
	}
	return sum, byName
}

func residentSize(pid int) int64 {
	return field(filepath.Join("/proc", strconv.Itoa(pid), "status"), "VmRSS:")
}

// field reads a number in kB from a file of "Name:  number kB" lines.
func field(path, name string) int64 {
	raw, _ := os.ReadFile(path)
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			return kb
		}
	}
	return 0
}
