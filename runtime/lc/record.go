package lc

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

const (
	recordFile    = "record.json"
	recordVersion = 1
)

// record is what this package keeps of a container. It is written twice: before
// anything is made (Init is then zero) and when init waits for Start. After that
// it never changes.
type record struct {
	Version     int               `json:"version"`
	ID          string            `json:"id"`
	Bundle      string            `json:"bundle"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Created     time.Time         `json:"created"`
	// Creator is the process that runs Create. Once it is gone, a record
	// without Init is the rest of an interrupted Create.
	Creator process `json:"creator"`
	Init    process `json:"init"`
	// Cgroup says how the cgroup was named, CgroupPaths where it is: by
	// controller on v1, "" for the unified hierarchy.
	Cgroup      cgroupName        `json:"cgroup"`
	CgroupPaths map[string]string `json:"cgroupPaths"`
	// Hooks that run after init was let go and after the container was deleted.
	Poststart []specs.Hook `json:"poststart,omitempty"`
	Poststop  []specs.Hook `json:"poststop,omitempty"`
}

// cgroupName is the part of cgroups.Cgroup that finds a cgroup again.
type cgroupName struct {
	Name        string `json:"name,omitempty"`
	Parent      string `json:"parent,omitempty"`
	Path        string `json:"path,omitempty"`
	ScopePrefix string `json:"scopePrefix,omitempty"`
	Systemd     bool   `json:"systemd,omitempty"`
	Rootless    bool   `json:"rootless,omitempty"`
}

func nameOf(c *cgroups.Cgroup) cgroupName {
	return cgroupName{
		Name: c.Name, Parent: c.Parent, Path: c.Path, ScopePrefix: c.ScopePrefix,
		Systemd: c.Systemd, Rootless: c.Rootless,
	}
}

func readRecord(dir string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, recordFile), err)
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("read %s: version %d is unknown, this program writes %d",
			filepath.Join(dir, recordFile), r.Version, recordVersion)
	}
	return &r, nil
}

func (r *record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, recordFile), data, 0o600)
}
