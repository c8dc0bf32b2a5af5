package leak

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// processes lists all of this process namespace, each with its start time, as ids
// are used again; not by their names, which they give themselves. The long-lived ones may be
// replaced by others of the same name. A container that has not executed its own program yet passes
// for one of them, so they go by their start, too, of which there is nothing to tell.
func processes(longLived []int, put func(key, line string)) error {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", d.Name(), "stat"))
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		// "pid (comm) state ppid …": comm may contain anything, so cut at the last ')'.
		open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
		fields := strings.Fields(string(stat[end+1:]))
		state, parent, start := fields[0], fields[1], fields[19]
		key := fmt.Sprintf("process %s started %s", d.Name(), start)
		line := fmt.Sprintf("process %s (%s) started %s", d.Name(), stat[open+1:end], start)
		if slices.Contains(longLived, pid) {
			put(key, "")
			line = "process of the daemon: " + string(stat[open+1:end])
			key = line
		}
		if state == "Z" {
			line += ", not reaped by " + parent
			key = line
		}
		put(key, line)
	}
	return nil
}

// descriptors lists the open files of a process by what they are, numbers taken off.
// Sockets are left out: clients come and go.
func descriptors(pid int, add func(kind, what string)) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		target = inode.ReplaceAllString(target, "[…]")
		if strings.HasPrefix(target, "socket:") {
			continue
		}
		add("descriptor", fmt.Sprintf("of %s: %s", exeName(pid), target))
	}
	return nil
}

var inode = regexp.MustCompile(`\[\d+\]`)

// keeperName is the keeper's name for itself; its program is the shim's.
const keeperName = "coracle-keeper"

// exeName is the base name of a process's program: a replaced shim must compare
// with the one before.
func exeName(pid int) string {
	if comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm")); err == nil && string(comm) == keeperName+"\n" {
		return keeperName
	}
	exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	if err != nil {
		return "?"
	}
	return filepath.Base(exe)
}

// gone says that a process ended while it was looked at.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}
