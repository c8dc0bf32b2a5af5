package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// A container's directory appears with its record in it and goes as a whole, each by
// a rename: killed in between, a process must not leave a directory without a record,
// which would take an id forever that Load says is free. What it does leave has one of
// these prefixes, which no id can have, and is removed by the next engine's first Create
// or List.
const (
	newPrefix  = "~new-"  // then the maker's pid and "-"
	gonePrefix = "~gone-" // then the container's id
)

// Claim makes the container's directory and writes down what is about to be made.
func (s *Store) Claim(rec *Record) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	s.sweepOnce.Do(s.sweep)
	tmp, err := s.newDir()
	if err != nil {
		return err
	}
	if err := s.fill(tmp, rec); err != nil {
		s.remover.Remove(tmp)
		return err
	}
	return nil
}

// serial tells the directories apart that this process makes.
var serial atomic.Uint64

// newDir makes a directory of this process that is no container's yet.
func (s *Store) newDir() (string, error) {
	for {
		dir := filepath.Join(s.dir, fmt.Sprintf("%s%d-%d", newPrefix, os.Getpid(), serial.Add(1)))
		err := unix.Mkdir(dir, 0o700)
		if errors.Is(err, unix.EEXIST) { // an earlier process had this one's pid
			continue
		}
		if err != nil {
			return "", fmt.Errorf("make directory of container: %w", err)
		}
		return dir, nil
	}
}

// fill writes the record into a directory and gives that its name.
func (s *Store) fill(tmp string, rec *Record) error {
	if err := os.Chmod(tmp, 0o711); err != nil {
		return err
	}
	if err := rec.writeFirst(tmp); err != nil {
		return err
	}
	// A link costs no copy, and is safe: the record is never written in place. Without the link, a
	// damaged record cannot be rebuilt as well, but all else works.
	_ = unix.Link(filepath.Join(tmp, recordFile), filepath.Join(tmp, claimFile))
	err := unix.Rename(tmp, s.ContainerDir(rec.ID))
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return runtime.ErrExists
	}
	if err != nil {
		return fmt.Errorf("make directory of container: %w", err)
	}
	rec.dir = s.ContainerDir(rec.ID)
	return nil
}

// Release removes the container's directory. It succeeds if there is none. The container is gone
// once its directory has another name; files that cannot be deleted yet are deleted later.
func (s *Store) Release(ctx context.Context, rec *Record) error {
	gone := filepath.Join(s.dir, fmt.Sprintf("%s%s-%d", gonePrefix, rec.ID, rec.Created.UnixNano()))
	if err := unix.Rename(s.ContainerDir(rec.ID), gone); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove directory of container: %w", err)
	}
	if err := faultDeleteRenamed.At(ctx); err != nil {
		// The next try no longer finds the container, and cannot find this directory.
		s.remover.Remove(gone)
		return err
	}
	// That is all there is in most.
	_ = unix.Unlink(filepath.Join(gone, recordFile))
	_ = unix.Unlink(filepath.Join(gone, claimFile))
	if unix.Rmdir(gone) == nil {
		return nil
	}
	s.remover.Remove(gone)
	return nil
}

// sweep removes what killed processes left.
func (s *Store) sweep() {
	entries, err := os.ReadDir(s.dir)
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
		s.remover.Remove(filepath.Join(s.dir, name))
	}
}

// makerLives says whether the process that starts a directory's name may still fill it.
func makerLives(name string) bool {
	pid, _, _ := strings.Cut(name, "-")
	n, err := strconv.Atoi(pid)
	return err == nil && n > 0 && !errors.Is(unix.Kill(n, 0), unix.ESRCH)
}
