package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// layout is how cgroups are mounted: one tree (v2), or one per controller (v1, also alongside a v2
// tree without controllers).
type layout interface {
	// open prepares the cgroup that all others are made below. An error says that limits would not
	// hold there.
	open(root string) error
	make(path string) error
	// set fails where a figure has no file.
	set(path string, f figures) error
	// limits returns the quota and the memory limit of a cgroup, 0 for none.
	limits(path string) (figures, error)
	// memoryUsed returns how much memory is charged to a cgroup, in bytes.
	memoryUsed(path string) (int64, error)
	// empty says whether there are no cgroups below one.
	empty(path string) (bool, error)
	// all returns the directories of all hierarchies.
	all() []string
}

// needed are the controllers without which pods' limits do not hold.
var needed = []string{"cpu", "memory", "pids"}

// mkdir makes a directory that need not be new, in one that exists.
func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func detect(mount string, log *slog.Logger) (layout, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(mount, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", mount, err)
	}
	if s.Type == unix.CGROUP2_SUPER_MAGIC {
		return unified{mount, mkdir, log}, nil
	}
	l := perController{mount: mount, mkdir: mkdir}
	for _, c := range needed {
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
	mkdir       func(dir string) error
}

func (l perController) open(root string) error {
	if missing := without(needed, l.controllers); len(missing) > 0 {
		return fmt.Errorf("%s has no cgroup controllers %s: pods' limits would not hold; mount them there, "+
			"or enable them in the kernel (cgroup_enable=memory on its command line)", l.mount, strings.Join(missing, " "))
	}
	return l.make(root)
}

func (l perController) make(path string) error {
	for _, c := range l.controllers {
		if err := makeAll(filepath.Join(l.mount, c), path, l.mkdir); err != nil {
			return err
		}
	}
	return nil
}

// makeAll makes the directory at path in top, and those between.
func makeAll(top, path string, mkdir func(dir string) error) error {
	dir := filepath.Join(top, path)
	if dir == top {
		return nil
	}
	err := mkdir(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeAll(top, filepath.Dir(path), mkdir); err != nil {
		return err
	}
	return mkdir(dir)
}

// without returns those of all that are not in some.
func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

func (l perController) set(path string, f figures) error {
	var errs []error
	write := func(controller, file string, value int64) {
		if value != 0 {
			errs = append(errs, writeFigure(filepath.Join(l.mount, controller, path, file), strconv.FormatInt(value, 10)))
		}
	}
	write("cpu", "cpu.shares", f.shares)
	if f.quota != 0 {
		write("cpu", "cpu.cfs_period_us", Period)
		write("cpu", "cpu.cfs_quota_us", f.quota)
	}
	write("memory", "memory.limit_in_bytes", f.memory)
	write("pids", "pids.max", f.pids)
	return errors.Join(errs...)
}

func (l perController) limits(path string) (f figures, err error) {
	if f.quota, err = readFigure(filepath.Join(l.mount, "cpu", path, "cpu.cfs_quota_us")); err != nil {
		return figures{}, err
	}
	f.memory, err = readFigure(filepath.Join(l.mount, "memory", path, "memory.limit_in_bytes"))
	return f, err
}

func (l perController) memoryUsed(path string) (int64, error) {
	return readFigure(filepath.Join(l.mount, "memory", path, "memory.usage_in_bytes"))
}

func (l perController) empty(path string) (bool, error) {
	for _, c := range l.controllers {
		if empty, err := noneBelow(filepath.Join(l.mount, c, path)); !empty || err != nil {
			return false, err
		}
	}
	return true, nil
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

// unified is cgroup v2. A cgroup has a controller's files only if the cgroup above it enables the
// controller in its cgroup.subtree_control, from the top on.
type unified struct {
	mount string
	mkdir func(dir string) error
	log   *slog.Logger
}

// open also enables the controllers in the cgroups on the way: what made them had no use for it.
func (l unified) open(root string) error {
	if err := l.enable(l.mount); err != nil {
		return err
	}
	dir := l.mount
	for name := range strings.SplitSeq(strings.Trim(root, "/"), "/") {
		if name == "" {
			continue
		}
		dir = filepath.Join(dir, name)
		if err := l.mkdir(dir); err != nil {
			return err
		}
		if err := l.enable(dir); err != nil {
			return err
		}
	}
	return nil
}

// make also hands the controllers down, for those below.
func (l unified) make(path string) error {
	dir := filepath.Join(l.mount, path)
	err := l.mkdir(dir)
	if errors.Is(err, fs.ErrNotExist) { // something has removed what open made
		if err = l.open(filepath.Dir(path)); err == nil {
			err = l.mkdir(dir)
		}
	}
	if err != nil {
		return err
	}
	return l.enable(dir)
}

// enable gives all controllers of a cgroup to those below it. Only those that are needed have to be
// there; a limit of another is set by the runtime, which fails without it.
func (l unified) enable(dir string) error {
	there, err := words(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	if missing := without(needed, there); len(missing) > 0 {
		return fmt.Errorf("%s has no cgroup controllers %s: pods' limits would not hold; enable them in the cgroup above, "+
			"or in the kernel (cgroup_enable=memory on its command line)", dir, strings.Join(missing, " "))
	}
	control := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := words(control)
	if err != nil {
		return err
	}
	on := func(controllers ...string) error {
		if controllers = without(controllers, enabled); len(controllers) == 0 {
			return nil
		}
		return writeFigure(control, "+"+strings.Join(controllers, " +"))
	}
	if on(there...) == nil {
		return nil
	}
	// All or none are enabled by one write: cpu without memory would turn a cgroup with processes
	// into a threaded one.
	if err := on(needed...); err != nil {
		return notEnabled(dir, err)
	}
	for _, c := range without(there, needed) {
		if err := on(c); err != nil {
			l.log.Warn("a cgroup controller cannot be enabled", "cgroup", dir, "controller", c, "err", err)
		}
	}
	return nil
}

func notEnabled(dir string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: processes run in %s itself; move them to a cgroup below it, or give --cgroup-root another one", err, dir)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %s is a threaded cgroup; give --cgroup-root another one", err, dir)
	}
	return err
}

func words(file string) ([]string, error) {
	content, err := os.ReadFile(file)
	return strings.Fields(string(content)), err
}

func (l unified) set(path string, f figures) error {
	var errs []error
	write := func(file, value string) {
		errs = append(errs, writeFigure(filepath.Join(l.mount, path, file), value))
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
	if f.pids != 0 {
		write("pids.max", strconv.FormatInt(f.pids, 10))
	}
	return errors.Join(errs...)
}

func (l unified) limits(path string) (f figures, err error) {
	if f.quota, err = readFigure(filepath.Join(l.mount, path, "cpu.max")); err != nil {
		return figures{}, err
	}
	f.memory, err = readFigure(filepath.Join(l.mount, path, "memory.max"))
	return f, err
}

func (l unified) memoryUsed(path string) (int64, error) {
	return readFigure(filepath.Join(l.mount, path, "memory.current"))
}

func (l unified) empty(path string) (bool, error) { return noneBelow(filepath.Join(l.mount, path)) }

func (l unified) all() []string { return []string{l.mount} }

// noneBelow says whether a cgroup's directory has none of other cgroups.
func noneBelow(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	return !slices.ContainsFunc(entries, fs.DirEntry.IsDir), err
}

// mostMemory is less than what version 1 of cgroups says of memory without a limit, and more than
// any machine has.
const mostMemory = 1 << 62

// readFigure reads the first number of a file that the kernel has made; 0 for no limit.
func readFigure(file string) (int64, error) {
	all, err := words(file)
	if err != nil || len(all) == 0 || all[0] == "max" {
		return 0, err
	}
	n, err := strconv.ParseInt(all[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if n < 0 || n > mostMemory {
		return 0, nil
	}
	return n, nil
}

// writeFigure writes to a file that the kernel has made.
func writeFigure(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("set %s to %s: %w", file, value, err)
	}
	return nil
}
