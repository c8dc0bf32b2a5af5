// Package base is what every engine does the same way: it keeps containers' records,
// and drives a container that runs by its record and its cgroups. An engine adds how a
// container and its processes come to life.
//
// # State directory
//
//	<StateDir>/<id>/record.json  what is known of a container (see Record)
//	<StateDir>/<id>/claim.json   its first version, from before the container was made
//	<StateDir>/<id>/halt-*       a kill that has frozen its processes (see halt.go)
//
// The directory is made first and exclusively, so two Creates of one id cannot both
// succeed, and never seen without its record (see claim.go). The record names the cgroups
// before they are made: whatever instruction a Create is killed at, Delete finds what it
// left. What else is in the directory is the engine's.
package base

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/remover"
	"github.com/coracle-project/coracle/runtime"
)

// Store is a state directory. Any number of them, in any number of processes, may share
// one.
type Store struct {
	dir string
	log *slog.Logger
	// remover deletes directories that no longer have a container's name.
	remover *remover.Remover

	sweepOnce sync.Once
	warnOOM   sync.Once // that oom_score_adj cannot be lowered
}

// NewStore checks the configuration. It touches nothing. A nil log is slog.Default().
func NewStore(dir string, log *slog.Logger) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("make engine: state directory %q is not an absolute path", dir)
	}
	if log == nil {
		log = slog.Default()
	}
	return &Store{dir: filepath.Clean(dir), log: log, remover: remover.New(log)}, nil
}

// Close ends the background work of the store: repeated deletions.
func (s *Store) Close() { s.remover.Close() }

// Log is where warnings go, such as a setting the kernel refused.
func (s *Store) Log() *slog.Logger { return s.log }

// ContainerDir is a container's directory, which exists from Claim to Release.
func (s *Store) ContainerDir(id string) string { return filepath.Join(s.dir, id) }

// Load reads a container's record, and thaws what a kill has left frozen that did not live to its
// end. ErrNotFound if there is none.
func (s *Store) Load(id string) (*Record, error) {
	if err := runtime.ValidateID(id); err != nil {
		return nil, fmt.Errorf("load container: %w", err)
	}
	rec, err := readRecord(s.ContainerDir(id))
	if errors.Is(err, os.ErrNotExist) {
		if _, cerr := os.Lstat(filepath.Join(s.ContainerDir(id), claimFile)); cerr == nil {
			return nil, fmt.Errorf("load container %s: %s is missing: %w", id, recordFile, recordfile.ErrDamaged)
		}
		return nil, fmt.Errorf("load container %s: %w", id, runtime.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("load container %s: %w", id, err)
	}
	rec.dir = s.ContainerDir(id)
	if err := rec.thawLeft(); err != nil {
		s.log.Warn("container stays frozen until it is loaded again", "container", id, "err", err)
	}
	return rec, nil
}

// List returns the ids of all containers, sorted.
func (s *Store) List() ([]string, error) {
	s.sweepOnce.Do(s.sweep)
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if !entry.IsDir() || runtime.ValidateID(entry.Name()) != nil {
			continue
		}
		// If stat fails for another reason, assume that the file exists.
		if _, err := os.Stat(filepath.Join(s.dir, entry.Name(), recordFile)); !errors.Is(err, os.ErrNotExist) {
			ids = append(ids, entry.Name())
		}
	}
	slices.Sort(ids)
	return ids, nil
}
