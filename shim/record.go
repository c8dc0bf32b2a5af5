package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/runtime"
)

// phase is how far a container has come, as its record says.
type phase string

const (
	phaseCreating phase = "creating" // found at start-up: rolled back
	phaseCreated  phase = "created"
	phaseDeleting phase = "deleting" // not started, and never will be; found at start-up: rolled back
	phaseRunning  phase = "running"
	phaseExited   phase = "exited"
)

// record is what a shim writes down of a container, so that the next shim can go on.
// It is a file in the container's directory; FORMATS.md describes it.
type record struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	PodID   string `json:"podID,omitempty"`
	Bundle  string `json:"bundle"`
	Phase   phase  `json:"phase"`

	Terminal    bool   `json:"terminal,omitempty"`
	Stdin       bool   `json:"stdin,omitempty"`
	StdinOnce   bool   `json:"stdinOnce,omitempty"`
	StdinClosed bool   `json:"stdinClosed,omitempty"`
	Log         bool   `json:"log,omitempty"` // the shim keeps stdio itself
	LogPath     string `json:"logPath,omitempty"`
	// The log's limit; absent for none.
	LogFileBytes int64 `json:"logFileBytes,omitempty"`
	LogFiles     int   `json:"logFiles,omitempty"`
	// The caller's FIFOs, if the shim does not keep stdio itself.
	StdinFIFO  string `json:"stdinFIFO,omitempty"`
	StdoutFIFO string `json:"stdoutFIFO,omitempty"`
	StderrFIFO string `json:"stderrFIFO,omitempty"`

	SystemdCgroup bool `json:"systemdCgroup,omitempty"`
	// OOMBefore is what the cgroup above the container's has counted of kills that are not the
	// container's, see oomKills; nil where that is not needed.
	OOMBefore *int64 `json:"oomBefore,omitempty"`
	// Restored says that the processes come from a checkpoint and needed no start.
	Restored bool `json:"restored,omitempty"`
	// Handler is who made the container, if not the shim's own engine.
	Handler string `json:"handler,omitempty"`

	Process *processRecord `json:"process,omitempty"`
}

func (r *record) logLimit() logLimit { return logLimit{r.LogFileBytes, r.LogFiles} }

// ownTerminal says that the container has a terminal whose master side the shim has. Another
// containerd shim keeps those that it makes, and copies to and from FIFOs.
func (r *record) ownTerminal(terminal bool) bool {
	return terminal && !strings.HasPrefix(r.Handler, runtime.ShimHandler)
}

// processRecord is a process that was started, and its end once that is known.
type processRecord struct {
	PID       int        `json:"pid"`
	StartTime uint64     `json:"startTime"` // clock ticks since boot
	Exit      *exitState `json:"exit,omitempty"`
}

// exitState is how a process ended.
type exitState struct {
	Code      int32     `json:"code"`
	Unknown   bool      `json:"unknown,omitempty"` // code stands for one that cannot be known
	At        time.Time `json:"at"`                // when it was found out
	OOMKilled bool      `json:"oomKilled,omitempty"`
}

// execRecord is an additional process in a container.
type execRecord struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`
	Terminal bool   `json:"terminal,omitempty"`
	Stdin    string `json:"stdin,omitempty"` // the caller's FIFOs
	Stdout   string `json:"stdout,omitempty"`
	Stderr   string `json:"stderr,omitempty"`
	// Owner is the process that it ends with, if there is one.
	Owner *owner `json:"owner,omitempty"`
	// Deadline is when it has to have ended, on CLOCK_MONOTONIC; 0 for never.
	Deadline time.Duration `json:"deadlineNs,omitempty"`
	// Process is nil while it is being started, which only one with an owner is on record for.
	Process *processRecord `json:"process"`
}

const (
	recordVersion = 1
	recordName    = "container.json"
)

func writeRecord(path string, r any) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return atomicfile.Write(path, b, 0o600)
}

func readRecord(dir string) (record, error) {
	var r record
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return r, fmt.Errorf("read record: %w", err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("read record %s: %w", dir, err)
	}
	if r.Version != recordVersion || r.ID != filepath.Base(dir) {
		return r, fmt.Errorf("read record %s: version %d of container %q: %w", dir, r.Version, r.ID, errors.ErrUnsupported)
	}
	return r, nil
}

func readExecRecord(path string) (execRecord, error) {
	var r execRecord
	b, err := os.ReadFile(path)
	if err != nil {
		return r, fmt.Errorf("read exec record: %w", err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("read exec record %s: %w", path, err)
	}
	if r.Version != recordVersion || r.Process == nil && r.Owner == nil {
		return r, fmt.Errorf("read exec record %s: version %d: %w", path, r.Version, errors.ErrUnsupported)
	}
	return r, nil
}
