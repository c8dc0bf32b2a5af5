package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// memory is what a runtime takes with pods idle, in kB of PSS (proportional set
// size: shared pages count in part).
type memory struct {
	Pods int `json:"pods"`
	// PerPod is the growth of all processes but the payload, divided by Pods.
	PerPod float64 `json:"kb_per_pod"`
	// Idle and Busy are all processes of the runtime with no pod and with Pods pods.
	Idle, Busy int64
	// DaemonIdle is the daemon's resident size before the first pod.
	DaemonIdle int64            `json:"daemon_idle_rss_kb"`
	Processes  int              `json:"processes"`
	ByName     map[string]int64 `json:"by_name"`
}

// settle is how long a runtime gets to come to rest before memory is read.
const settle = 3 * time.Second

// measureMemory has only this runtime up.
func measureMemory(ctx context.Context, t *target, pods int) (m *memory, err error) {
	c, err := t.up(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinDown(err, t) }()
	m = &memory{Pods: pods}
	if err := rest(ctx); err != nil {
		return nil, err
	}
	m.DaemonIdle = residentSize(t.pid())
	for range 5 { // what is made once (a node's shim, pools) is there before the first reading
		if _, err := c.life(ctx); err != nil {
			return nil, err
		}
	}
	if err := rest(ctx); err != nil {
		return nil, err
	}
	idle, _, _ := runtimeMemory()
	held := make([]*pod, 0, pods)
	for range pods {
		p, err := c.start(ctx)
		if err != nil {
			return nil, err
		}
		held = append(held, p)
	}
	if err := rest(ctx); err != nil {
		return nil, err
	}
	busy, names, count := runtimeMemory()
	m.Idle, m.Busy, m.ByName, m.Processes = idle, busy, names, count
	m.PerPod = float64(busy-idle) / float64(pods)
	for _, p := range held {
		if err := c.remove(ctx, p, grace); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(os.Stderr, "bench: %s: %.0f kB per idle pod\n", t.name, m.PerPod)
	return m, nil
}

func rest(ctx context.Context) error {
	select {
	case <-time.After(settle):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runtimeMemory sums all processes in this process namespace except the payload,
// this program and its init, and the registry.
func runtimeMemory() (sum int64, byName map[string]int64, count int) {
	byName = map[string]int64{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	self, _ := os.Readlink("/proc/self/exe")
	for _, dir := range dirs {
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil || exe == self || filepath.Base(exe) == "registry" {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		argv := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		if len(argv) == 2 && argv[0] == "/pause" && argv[1] == marker {
			continue
		}
		kb := field(filepath.Join(dir, "smaps_rollup"), "Pss:")
		byName[filepath.Base(argv[0])] += kb
		sum += kb
		count++
	}
	return sum, byName, count
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
