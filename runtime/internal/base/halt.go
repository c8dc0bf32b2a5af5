package base

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/kernfile"
)

// A kill that freezes first is noted in the container's directory until everything may move again. If it is killed
// itself, whoever loads the container next finds the note, and thaws what nobody else would. Each kill has a note of
// its own, so that nobody takes away another's.
const haltPrefix = "halt-" // then the killer's pid, its start and a number

// itself is this process.
var itself = sync.OnceValues(func() (Process, error) { return Identify(os.Getpid()) })

// noteHalt writes the note, and returns where it is.
func (r *Record) noteHalt() (string, error) {
	if r.dir == "" {
		return "", errors.New("the container has no directory")
	}
	me, err := itself()
	if err != nil {
		return "", err
	}
	note := filepath.Join(r.dir, fmt.Sprintf("%s%d-%d-%d", haltPrefix, me.Pid, me.Start, serial.Add(1)))
	return note, kernfile.Create(note, nil, recordMode)
}

// halt freezes what is to be killed, so that no process forks while the others are found. The caller thaws it with
// the returned function, which is nil if it is not frozen. A cgroup without processes is left alone, as is most of the
// time what is asked of a container that has ended.
func (r *Record) halt(ctx context.Context) (thaw func(), err error) {
	if pids, me, err := r.pidsAndMe(); err != nil || len(pids) == 0 || me {
		return nil, nil
	}
	if r.CgroupPaths["freezer"] == "" && !cgroups.IsCgroup2UnifiedMode() {
		return nil, nil
	}
	note, err := r.noteHalt()
	if err != nil {
		return nil, nil // a kill can do without the freezer, but not freeze without the note
	}
	if err := faultKillNoted.At(ctx); err != nil {
		return nil, errors.Join(err, unix.Unlink(note))
	}
	if r.freeze(cgroups.Frozen) != nil {
		_ = r.unfreeze()
		_ = unix.Unlink(note)
		return nil, nil
	}
	thaw = func() {
		if r.unfreeze() == nil {
			_ = unix.Unlink(note)
		}
	}
	if err := faultKillFrozen.At(ctx); err != nil {
		thaw()
		return nil, err
	}
	return thaw, nil
}

// unfreeze succeeds where there is no cgroup any more.
func (r *Record) unfreeze() error {
	err := r.freeze(cgroups.Thawed)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// thawLeft thaws what kills have left frozen that did not live to their end.
func (r *Record) thawLeft() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil // whoever may not look into it may not thaw it either
	}
	for _, entry := range entries {
		rest, is := strings.CutPrefix(entry.Name(), haltPrefix)
		if !is {
			continue
		}
		var killer Process
		if _, err := fmt.Sscanf(rest, "%d-%d-", &killer.Pid, &killer.Start); err == nil && killer.Alive() {
			continue
		}
		if err := r.unfreeze(); err != nil {
			return fmt.Errorf("thaw what a kill has left: %w", err)
		}
		_ = unix.Unlink(filepath.Join(r.dir, entry.Name()))
	}
	return nil
}
