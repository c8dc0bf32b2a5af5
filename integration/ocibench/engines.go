//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
	oci "github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/lc"
)

// engineFigures are one engine's, in process as in the shim, with the default seccomp profile.
type engineFigures struct {
	exited, deleted, exec []time.Duration // from Create on, of exec from Exec on
	made                  int             // containers, by four callers at once,
	making                time.Duration   // and how long that took
	starterPSS            int             // kB, 0: it has no starter
}

// callers at once of made.
const callers = 4

func (f *engineFigures) perSecond() float64 { return float64(f.made) / f.making.Seconds() }

// engines measures the engines with few mounts on the host and with many. They take turns, and
// the order of both changes from one turn to the next.
func (w *workshop) engines(runs int, many *crowd) (map[string]*engineFigures, error) {
	names, all := []string{engine.Name, lc.Name}, map[string]*engineFigures{}
	for _, name := range names {
		all[name], all[page.OnCrowdedHost(name)] = &engineFigures{}, &engineFigures{}
	}
	for turn := range 2 * page.Turns {
		mounted := turn%4 == 1 || turn%4 == 2 // without, with, with, without, …
		if mounted {
			if err := many.mount(); err != nil {
				return nil, err
			}
		}
		var err error
		for i := range names {
			name := names[(i+turn/2)%len(names)]
			f := all[name]
			if mounted {
				f = all[page.OnCrowdedHost(name)]
			}
			if err = w.engine(name, f, page.InRow(runs)); err != nil {
				err = fmt.Errorf("engine %s: %w", name, err)
				break
			}
		}
		if mounted {
			err = errors.Join(err, many.unmount())
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// engine measures one in one turn.
func (w *workshop) engine(name string, f *engineFigures, runs int) error {
	state := filepath.Join("/run/ocibench-engine", name)
	var e oci.Engine
	fallback, err := lc.New(lc.Config{StateDir: state})
	if err != nil {
		return err
	}
	e = fallback
	if name == engine.Name {
		ours, err := engine.New(engine.Config{StateDir: state})
		if err != nil {
			return err
		}
		defer ours.Close()
		e = ours
	}
	for i := range runs + warmUp {
		exited, deleted, err := w.life(e, "one")
		if err != nil {
			return err
		}
		if i >= warmUp {
			f.exited, f.deleted = append(f.exited, exited), append(f.deleted, deleted)
		}
	}
	if name == engine.Name {
		f.starterPSS = starterPSS()
	}
	if err := w.execs(e, f, runs); err != nil {
		return err
	}
	began := time.Now()
	err = w.parallel(e, runs)
	f.made, f.making = f.made+runs, f.making+time.Since(began)
	return err
}

// life is a container that runs true.
func (w *workshop) life(e oci.Engine, id string) (exited, deleted time.Duration, err error) {
	s, err := spec(defaultSeccomp, "/bin/true")
	if err != nil {
		return 0, 0, err
	}
	s.Linux.CgroupsPath = filepath.Join(filepath.Dir(cgroupPath), id)
	ctx := context.Background()
	began := time.Now()
	c, err := e.Create(ctx, id, s, oci.CreateOptions{Bundle: w.bundles[defaultSeccomp]})
	if err != nil {
		return 0, 0, err
	}
	pid := c.Pid()
	if err := c.Start(ctx); err != nil {
		return 0, 0, err
	}
	if err := reap(pid); err != nil {
		return 0, 0, err
	}
	exited = time.Since(began)
	err = c.Delete(ctx, oci.DeleteOptions{})
	return exited, time.Since(began), err
}

// execs are further processes of a container.
func (w *workshop) execs(e oci.Engine, f *engineFigures, runs int) error {
	s, err := spec(defaultSeccomp, "/bin/sleep", "1000")
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := e.Create(ctx, "one", s, oci.CreateOptions{Bundle: w.bundles[defaultSeccomp]})
	if err != nil {
		return err
	}
	init := c.Pid()
	defer func() {
		_ = c.Signal(ctx, unix.SIGKILL)
		_ = reap(init)
		_ = c.Delete(ctx, oci.DeleteOptions{Force: true})
	}()
	if err := c.Start(ctx); err != nil {
		return err
	}
	p := *s.Process
	p.Args = []string{"/bin/true"}
	for i := range runs + warmUp {
		took, err := execOnce(ctx, c, &p)
		if err != nil {
			return err
		}
		if i >= warmUp {
			f.exec = append(f.exec, took)
		}
	}
	return nil
}

func execOnce(ctx context.Context, c oci.Container, p *specs.Process) (time.Duration, error) {
	began := time.Now()
	pid, err := c.Exec(ctx, p, oci.ExecOptions{})
	if err == nil {
		err = reap(pid)
	}
	return time.Since(began), err
}

// parallel has four callers make containers.
func (w *workshop) parallel(e oci.Engine, runs int) error {
	var (
		group  sync.WaitGroup
		next   atomic.Int64
		failed atomic.Pointer[error]
	)
	for range callers {
		group.Go(func() {
			for n := next.Add(1); n <= int64(runs) && failed.Load() == nil; n = next.Add(1) {
				if _, _, err := w.life(e, "many-"+strconv.FormatInt(n, 10)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func reap(pid int) error {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err == nil && ws.ExitStatus() != 0 && !ws.Signaled() {
			err = fmt.Errorf("process %d ended with status %d", pid, ws.ExitStatus())
		}
		return err
	}
}

// starterPSS is the memory of the process that starts containers, in kB, shared pages in
// proportion; 0 if it cannot be found.
func starterPSS() int {
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, f := range files {
		if comm, err := os.ReadFile(f); err != nil || string(comm) != "coracle-zygote\n" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(filepath.Dir(f), "smaps_rollup"))
		if err != nil {
			return 0
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				kb, _ := strconv.Atoi(strings.Fields(rest)[0])
				return kb
			}
		}
	}
	return 0
}
