package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// layout is how cgroups are mounted: one tree (v2), or one per controller (v1, also beside a v2
// tree without controllers).
type layout interface {
	make(path string) error
	set(path string, f figures) error
	// all returns the directories of all hierarchies.
	all() []string
}

func detect(mount string) (layout, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(mount, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", mount, err)
	}
	if s.Type == unix.CGROUP2_SUPER_MAGIC {
		return unified{mount}, nil
	}
	l := perController{mount: mount}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if _, err := os.Stat(filepath.Join(mount, c)); err == nil {
			l.controllers = append(l.controllers, c)
		}
	}
	if len(l.controllers) == 0 {
		return nil, fmt.Errorf("%s has no cgroup controllers", mount)
	}
	return l, nil
}

// perController is cgroup v1.
type perController struct {
	mount       string
	controllers []string
}

func (l perController) make(path string) error {
	for _, c := range l.controllers {
		if err := os.MkdirAll(filepath.Join(l.mount, c, path), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (l perController) set(path string, f figures) error {
	var errs []error
	write := func(controller, file string, value int64) {
		dir := filepath.Join(l.mount, controller)
		if _, err := os.Stat(dir); value == 0 || err != nil {
			return
		}
		errs = append(errs, writeFigure(filepath.Join(dir, path, file), strconv.FormatInt(value, 10)))
	}
	write("cpu", "cpu.shares", f.shares)
	if f.quota != 0 {
		write("cpu", "cpu.cfs_period_us", Period)
		write("cpu", "cpu.cfs_quota_us", f.quota)
	}
	write("memory", "memory.limit_in_bytes", f.memory)
	return errors.Join(errs...)
}

func (l perController) all() []string {
	entries, err := os.ReadDir(l.mount)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() { // links are other names of the same
			dirs = append(dirs, filepath.Join(l.mount, e.Name()))
		}
	}
	return dirs
}

// unified is cgroup v2.
type unified struct {
	mount string
}

// make also hands the controllers down, from the first directory that is ours on. The top's are the
// system's affair.
func (l unified) make(path string) error {
	dir := filepath.Join(l.mount, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var enable []string
	for _, c := range strings.Fields(string(controllers)) {
		enable = append(enable, "+"+c)
	}
	if len(enable) == 0 {
		return nil
	}
	return writeFigure(filepath.Join(dir, "cgroup.subtree_control"), strings.Join(enable, " "))
}

func (l unified) set(path string, f figures) error {
	var errs []error
	write := func(file, value string) {
		target := filepath.Join(l.mount, path, file)
		if _, err := os.Stat(target); err == nil { // the controller may not be there
			errs = append(errs, writeFigure(target, value))
		}
	}
	if f.shares != 0 {
		write("cpu.weight", strconv.FormatInt(1+(f.shares-2)*9999/262142, 10))
	}
	if f.quota != 0 {
		write("cpu.max", fmt.Sprintf("%d %d", f.quota, Period))
	}
	if f.memory != 0 {
		write("memory.max", strconv.FormatInt(f.memory, 10))
	}
	return errors.Join(errs...)
}

func (l unified) all() []string { return []string{l.mount} }

func writeFigure(file, value string) error {
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", file, value, err)
	}
	return nil
}
