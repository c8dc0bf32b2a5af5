//go:build cgo

package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	wall []time.Duration // sorted
	cpu  time.Duration   // mean, of the command and what it has waited for
}

func (s *sample) at(quantile float64) time.Duration {
	return s.wall[int(float64(len(s.wall)-1)*quantile)]
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
		for _, rt := range []struct{ name, path string }{
			{"coracle-oci", "coracle-oci"}, {"crun", "peers/bin/crun"}, {"runc", "peers/bin/runc"},
		} {
			path := filepath.Join(w.bin, rt.path)
			if _, err := os.Stat(path); err != nil {
				return nil, fmt.Errorf("%s is missing, use make bench-oci: %w", rt.name, err)
			}
			root := filepath.Join("/run", "ocibench-"+rt.name)
			list = append(list, command{rt.name + ", " + profile, []string{path, "--root", root, "run", "--bundle", w.bundles[profile], "one"}})
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
	for i := range out {
		slices.Sort(out[i].wall)
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
