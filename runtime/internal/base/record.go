package base

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/kernfile"
	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/runtime/internal/resctrl"
)

const (
	recordFile = "record.json"
	// claimFile is the record as Claim wrote it: everything but init. A damaged record is rebuilt
	// from it (Store.Rebuild).
	claimFile = "claim.json"
	// badSuffix is appended to the name of an unreadable record.
	badSuffix     = ".bad"
	recordVersion = 1
	recordMode    = 0o600
)

// Record is what this package keeps of a container. It is written twice: before
// anything is made (Init is then zero) and when init waits for Start. After that
// it never changes.
type Record struct {
	Version int `json:"version"`
	// Engine is the one that made the container.
	Engine      string            `json:"engine,omitempty"`
	ID          string            `json:"id"`
	Bundle      string            `json:"bundle"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Created     time.Time         `json:"created"`
	// Creator is the process that runs Create. Once it is gone, a record
	// without Init is the rest of an interrupted Create.
	Creator Process `json:"creator"`
	Init    Process `json:"init"`
	// Cgroup says how the cgroup was named, CgroupPaths where it is: by
	// controller on v1, "" for the unified hierarchy.
	Cgroup      CgroupName        `json:"cgroup"`
	CgroupPaths map[string]string `json:"cgroupPaths"`
	// Resctrl is the class of service, nil if the container has none of its own engine's making.
	Resctrl *resctrl.Group `json:"resctrl,omitempty"`
	// Hooks that run after init was let go and after the container was deleted.
	Poststart []specs.Hook `json:"poststart,omitempty"`
	Poststop  []specs.Hook `json:"poststop,omitempty"`
	// Own is what the engine alone understands.
	Own json.RawMessage `json:"own,omitempty"`

	text    []byte // as last read or written
	rebuilt bool   // by Rebuild; it may differ from the file
	dir     string // the container's; empty until the directory has its final name
}

// CgroupName is the part of cgroups.Cgroup that finds a cgroup again.
type CgroupName struct {
	Name        string `json:"name,omitempty"`
	Parent      string `json:"parent,omitempty"`
	Path        string `json:"path,omitempty"`
	ScopePrefix string `json:"scopePrefix,omitempty"`
	Systemd     bool   `json:"systemd,omitempty"`
	Rootless    bool   `json:"rootless,omitempty"`
}

// NameOf is the name of a cgroup.
func NameOf(c *cgroups.Cgroup) CgroupName {
	return CgroupName{
		Name: c.Name, Parent: c.Parent, Path: c.Path, ScopePrefix: c.ScopePrefix,
		Systemd: c.Systemd, Rootless: c.Rootless,
	}
}

func readRecord(dir string) (*Record, error) { return readFile(filepath.Join(dir, recordFile)) }

func readFile(path string) (*Record, error) {
	data, err := recordfile.Read(path)
	if err != nil {
		return nil, err
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil || r.Version != recordVersion {
		// A newer version may have other types too.
		if cerr := recordfile.Check(path, data, recordVersion); cerr != nil {
			return nil, cerr
		}
		return nil, fmt.Errorf("read %s: %w: %w", path, recordfile.ErrDamaged, err)
	}
	r.text = data
	return &r, nil
}

// Write replaces the record in a container's directory.
func (r *Record) Write(dir string) error {
	return r.write(dir, func(path string, data []byte) error { return atomicfile.Write(path, data, recordMode) })
}

// writeFirst writes the record into a directory that no one else knows of yet.
func (r *Record) writeFirst(dir string) error {
	return r.write(dir, func(path string, data []byte) error { return kernfile.Create(path, data, recordMode) })
}

func (r *Record) write(dir string, write func(string, []byte) error) error {
	r.Version = recordVersion
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(dir, recordFile), data); err != nil {
		return err
	}
	r.text = data
	return nil
}

// isIn reports whether the directory belongs to this record. It may belong to a container that was
// made later, or be gone (os.ErrNotExist).
func (r *Record) isIn(dir string) (bool, error) {
	data, err := recordfile.Read(filepath.Join(dir, recordFile))
	if err == nil && bytes.Equal(data, r.text) {
		return true, nil
	}
	now, err := readRecord(dir)
	switch {
	case err == nil:
		return now.Created.Equal(r.Created), nil
	case errors.Is(err, recordfile.ErrDamaged), errors.Is(err, os.ErrNotExist):
		// The record was damaged after it was read. The claim says whose directory it is: it was
		// there before the directory got its name.
		claim, cerr := readFile(filepath.Join(dir, claimFile))
		if cerr == nil {
			return claim.Created.Equal(r.Created) || r.rebuilt, nil
		}
		if errors.Is(err, recordfile.ErrDamaged) {
			return true, nil
		}
	}
	if r.rebuilt && errors.Is(err, os.ErrNotExist) {
		return true, nil // at least its cgroups remain
	}
	return false, err
}
