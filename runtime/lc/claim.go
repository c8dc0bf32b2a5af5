package lc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/runtime"
)

// A container's directory appears with its record in it and goes as a whole, each by
// a rename: killed in between, a process must not leave a directory without a record,
// which would take an id for ever that Load says is free. What it does leave has one of
// these prefixes, which no id can have, and is removed by the next engine's first Create
// or List.
const (
	newPrefix  = "~new-"  // then the maker's pid and "-"
	gonePrefix = "~gone-" // then the container's id
)

// claim makes the container's directory and writes down what is about to be made.
func (e *Engine) claim(rec *record) error {
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return err
	}
	e.sweepOnce.Do(e.sweep)
	tmp, err := os.MkdirTemp(e.dir, newPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return err
	}
	if err := e.fill(tmp, rec); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return nil
}

// fill writes the record into a directory and gives that its name.
func (e *Engine) fill(tmp string, rec *record) error {
	if err := os.Chmod(tmp, 0o711); err != nil {
		return err
	}
	if err := rec.write(tmp); err != nil {
		return err
	}
	err := unix.Rename(tmp, e.containerDir(rec.ID))
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return runtime.ErrExists
	}
	if err != nil {
		return fmt.Errorf("make directory of container: %w", err)
	}
	return nil
}

// release removes the container's directory. It succeeds if there is none.
func (e *Engine) release(ctx context.Context, rec *record) error {
	gone := filepath.Join(e.dir, fmt.Sprintf("%s%s-%d", gonePrefix, rec.ID, rec.Created.UnixNano()))
	if err := unix.Rename(e.containerDir(rec.ID), gone); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove directory of container: %w", err)
	}
	if err := fault.At(ctx, "runtime.delete.renamed"); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// sweep removes what killed processes left. What cannot be removed stays: it is in
// nobody's way.
func (e *Engine) sweep() {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name := entry.Name()
		if rest, ok := strings.CutPrefix(name, newPrefix); ok && makerLives(rest) {
			continue
		} else if !ok && !strings.HasPrefix(name, gonePrefix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(e.dir, name)); err != nil {
			e.log.Warn("rest of a container not removed", "name", name, "error", err)
		}
	}
}

// makerLives says whether the process that begins a directory's name may still fill it.
func makerLives(name string) bool {
	pid, _, _ := strings.Cut(name, "-")
	n, err := strconv.Atoi(pid)
	return err == nil && n > 0 && !errors.Is(unix.Kill(n, 0), unix.ESRCH)
}
