package base

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime"
)

// Init implements runtime.Recorded.
func (c *Container) Init() (pid int, startTime uint64) { return c.Rec.Init.Pid, c.Rec.Init.Start }

// CheckRecords implements runtime.RecordChecker.
func (s *Store) CheckRecords() error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check containers' records: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() || runtime.ValidateID(entry.Name()) != nil {
			continue
		}
		for _, name := range []string{recordFile, claimFile} {
			err := recordfile.CheckFile(filepath.Join(s.dir, entry.Name(), name), recordVersion)
			if recordfile.Newer(err) != nil {
				return fmt.Errorf("container %s: %w", entry.Name(), err)
			}
		}
	}
	return nil
}

// Rebuild rebuilds the record of a container that Load cannot read: from the claim, which has
// everything but init, and from what the caller knows. Without a claim, engine is the engine that
// made the container. The returned record is usable even if it cannot be written.
func (s *Store) Rebuild(id, engine string, known runtime.Known) (*Record, error) {
	if err := runtime.ValidateID(id); err != nil {
		return nil, fmt.Errorf("rebuild record of container: %w", err)
	}
	dir := s.ContainerDir(id)
	rec, err := readFile(filepath.Join(dir, claimFile))
	switch {
	case err == nil && rec.ID == id:
	case transient.Is(err) || recordfile.Newer(err) != nil:
		return nil, fmt.Errorf("rebuild record of container %s: %w", id, err)
	case known.Pid == 0 && len(known.CgroupPaths) == 0:
		return nil, fmt.Errorf("rebuild record of container %s: nothing is known about it: %w", id, runtime.ErrNotFound)
	default:
		rec = &Record{Engine: engine, ID: id, Bundle: known.Bundle, Created: time.Now().UTC()}
	}
	rec.Init = Process{Pid: known.Pid, Start: known.StartTime}
	if len(rec.CgroupPaths) == 0 {
		if rec.CgroupPaths = known.CgroupPaths; len(rec.CgroupPaths) == 0 && rec.Init.Alive() {
			if rec.CgroupPaths, err = cgroupsNamed(rec.Init.Pid, id); err != nil {
				return nil, fmt.Errorf("rebuild record of container %s: %w", id, err)
			}
		}
	}
	rec.rebuilt = true
	if rec.Init.Pid == 0 {
		return rec, nil // enough to end the container; a later call may know more
	}
	if err := s.replaceBad(dir, rec); err != nil {
		s.log.Warn("cannot rewrite record of container", "container", id, "err", err)
	}
	rec.dir = dir
	return rec, nil
}

// replaceBad writes a record in place of a damaged one, which it keeps aside.
func (s *Store) replaceBad(dir string, rec *Record) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	path := filepath.Join(dir, recordFile)
	if err := unix.Rename(path, path+badSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep %s aside: %w", path, err)
	}
	return rec.Write(dir)
}

// cgroupsNamed returns the cgroups of a process, by controller, that are named after a container.
// Everything in these cgroups counts as the container's and is killed with it, so other cgroups
// must not be used.
func cgroupsNamed(pid int, id string) (map[string]string, error) {
	in, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for controller, path := range in {
		if path = upTo(path, id); path == "" {
			continue
		}
		if controller == "" {
			if root := unifiedRoot(); root != "" {
				out[""] = filepath.Join(root, path)
			}
			continue
		}
		mount, root, err := cgroups.FindCgroupMountpointAndRoot("", controller)
		if err != nil {
			continue // a hierarchy that is not mounted
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		out[controller] = filepath.Join(mount, rel)
	}
	return out, nil
}

// upTo returns the path up to the element that has the id in its name; "" if there is none.
func upTo(path, id string) string {
	elements := strings.Split(path, "/")
	for i, element := range elements {
		if element == id || strings.HasSuffix(element, "-"+id+".scope") {
			return strings.Join(elements[:i+1], "/")
		}
	}
	return ""
}

// unifiedRoot is where the unified hierarchy is mounted, "" if it is not.
func unifiedRoot() string {
	const root = "/sys/fs/cgroup"
	if cgroups.IsCgroup2UnifiedMode() {
		return root
	}
	if cgroups.IsCgroup2HybridMode() {
		return root + "/unified"
	}
	return ""
}
