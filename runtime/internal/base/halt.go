package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/kernfile"
)

// A kill that freezes first is noted in the container's directory until everything may move again.
// If the killer is killed itself, the next process that loads the container finds the note and
// thaws the cgroup. Each kill has its own note, so that none removes another's.
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

// halt freezes what is to be killed, so that no process forks while the others are found. The
// caller thaws it with the returned function, which is nil if it is not frozen. A cgroup without
// processes is left alone, as is most of the time what is asked of a container that has ended.
//
// A kill works without the freezer. So halt freezes only if it is sure to thaw: it has a note and
// an open descriptor, since opening one later may fail.
func (r *Record) halt(ctx context.Context) (thaw func() error, err error) {
	if pids, me, err := r.pidsAndMe(); err != nil || len(pids) == 0 || me {
		return nil, nil
	}
	freezer, err := r.openFreezer()
	if err != nil {
		return nil, nil
	}
	note, err := r.noteHalt()
	if err != nil {
		_ = unix.Close(freezer.fd)
		return nil, nil
	}
	thaw = func() error {
		defer unix.Close(freezer.fd)
		if err := freezer.thaw(); err != nil {
			return err
		}
		_ = unix.Unlink(note)
		return nil
	}
	if err := faultKillNoted.At(ctx); err != nil {
		return nil, errors.Join(err, thaw())
	}
	if r.freeze(cgroups.Frozen) != nil {
		return nil, thaw()
	}
	if err := faultKillFrozen.At(ctx); err != nil {
		return nil, errors.Join(err, thaw())
	}
	return thaw, nil
}

// thawLeft thaws what interrupted kills left frozen.
func (r *Record) thawLeft() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil // without the right to read it there is no right to thaw either
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
