//go:build cgo

package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

//go:embed testdata/floor.c
var floorSource string

// command is one that is measured.
type command struct {
	name string
	argv []string
}

// sample are the measurements of one command.
type sample struct {
	name string
	wall []time.Duration
	cpu  time.Duration // mean, of the command and what it has waited for
}

// commands runs `run` of true with every runtime, so many times in a row before it is another one's
// turn; another one starts each time. What a kernel does later, or less often, than after each
// run (RCU, the moves of cgroup v1) falls on others in turns, and on the same in a row.
func (w *workshop) commands(runs, inRow int) ([]sample, error) {
	rootfs := filepath.Join(w.bundles[noSeccomp], "rootfs")
	list := []command{
		{"fork, exec and wait", []string{filepath.Join(rootfs, "bin/true")}},
		{"unshare(1)", []string{"unshare", "-fpmuin", "--mount-proc", filepath.Join(rootfs, "bin/true")}},
		{"floor: namespaces, cgroups, mount and exec in C", []string{w.floor, rootfs, filepath.Dir(cgroupPath) + "-floor", "/bin/true"}},
	}
	for _, profile := range []string{noSeccomp, defaultSeccomp} {
		for _, name := range []string{"coracle-oci", "crun", "runc"} {
			root := filepath.Join("/run", "ocibench-"+name)
			argv := []string{programs(w.bin)[name], "--root", root, "run", "--bundle", w.bundles[profile], "one"}
			list = append(list, command{name + ", " + profile, argv})
		}
	}
	out := make([]sample, len(list))
	for k, c := range list {
		out[k].name = c.name
		for range warmUp {
			if _, _, err := once(c); err != nil {
				return nil, err
			}
		}
	}
	for turn := range runs / inRow {
		for k := range list {
			k = (k + turn) % len(list)
			for range inRow {
				took, cpu, err := once(list[k])
				if err != nil {
					return nil, err
				}
				out[k].wall = append(out[k].wall, took)
				out[k].cpu += cpu / time.Duration(runs/inRow*inRow)
			}
		}
	}
	return out, nil
}

// warmUp is how many runs are not counted.
const warmUp = 3

func once(c command) (took, cpu time.Duration, err error) {
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	if cmd.Path, err = exec.LookPath(c.argv[0]); err != nil {
		return 0, 0, err
	}
	// A file, not a pipe, which would need a goroutine to copy from.
	f, err := os.CreateTemp("", "ocibench-said-")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	_ = os.Remove(f.Name())
	cmd.Stderr = f
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	err = cmd.Wait()
	took = time.Since(began)
	if err != nil {
		_, _ = f.Seek(0, 0)
		said, _ := io.ReadAll(io.LimitReader(f, 2048))
		return 0, 0, fmt.Errorf("%s: %w: %s", c.name, err, said)
	}
	u := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return took, time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
