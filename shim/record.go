package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/containerlog"
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
	// LogDirectory is what LogPath must not lead out of; empty: an older daemon did not say.
	LogDirectory string `json:"logDirectory,omitempty"`
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
	// Cgroups are the container's cgroups by controller, see runtime.CgroupHolder. With them the
	// container can be killed even if the engine has lost it.
	Cgroups map[string]string `json:"cgroups,omitempty"`

	Process *processRecord `json:"process,omitempty"`

	kept *recordfile.Kept // fields that a newer shim wrote
}

func (r *record) logLimit() containerlog.Limit {
	return containerlog.Limit{FileBytes: r.LogFileBytes, Files: r.LogFiles}
}

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
	Unknown   bool      `json:"unknown,omitempty"` // the exit code cannot be known
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
	// Owner is the process that the exec ends with, if any.
	Owner *owner `json:"owner,omitempty"`
	// Deadline is when the exec must have ended, on CLOCK_MONOTONIC; 0 for never.
	Deadline time.Duration `json:"deadlineNs,omitempty"`
	// Ending is set before the shim kills the exec because of its owner's end or its deadline. The
	// processes that the exec started are then killed too, even if its own process has ended by
	// then.
	Ending bool `json:"ending,omitempty"`
	// Process is nil while the process is being started. Only an exec with an owner has a record
	// then.
	Process *processRecord `json:"process"`

	kept *recordfile.Kept
}

const (
	recordVersion = 1
	recordName    = "container.json"
	// wantedName is a copy of the record from before the container was created: what was requested.
	// It is used if the record cannot be read.
	wantedName = "wanted.json"
	// badSuffix is appended to the name of an unreadable record.
	badSuffix = ".bad"

	execPrefix, execSuffix = "exec-", ".json"
)

func writeRecord(path string, r any, kept *recordfile.Kept) error {
	b, err := kept.Marshal(r)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return atomicfile.Write(path, b, 0o600)
}

// readRecord reads a container's record. Its errors are those of package recordfile, or
// os.ErrNotExist.
func readRecord(dir string) (record, error) { return readRecordFile(dir, recordName) }

func readRecordFile(dir, name string) (record, error) {
	path := filepath.Join(dir, name)
	b, err := recordfile.Read(path)
	if err != nil {
		return record{}, fmt.Errorf("read record: %w", err)
	}
	var r record
	if r.kept, err = recordfile.Decode(path, b, recordVersion, &r); err != nil {
		return record{}, fmt.Errorf("read record: %w", err)
	}
	if r.ID != filepath.Base(dir) {
		return record{}, fmt.Errorf("read record %s: it belongs to container %q: %w", path, r.ID, recordfile.ErrDamaged)
	}
	return r, nil
}

func readExecRecord(path string) (execRecord, error) {
	b, err := recordfile.Read(path)
	if err != nil {
		return execRecord{}, fmt.Errorf("read exec record: %w", err)
	}
	var r execRecord
	if r.kept, err = recordfile.Decode(path, b, recordVersion, &r); err != nil {
		return execRecord{}, fmt.Errorf("read exec record: %w", err)
	}
	if r.Process == nil && r.Owner == nil || execPrefix+r.ID+execSuffix != filepath.Base(path) {
		return execRecord{}, fmt.Errorf("read exec record %s: it belongs to exec %q: %w", path, r.ID, recordfile.ErrDamaged)
	}
	return r, nil
}

// execRecords returns the ids of a container's execs that have a record.
func execRecords(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read exec records: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		rest, is := strings.CutPrefix(entry.Name(), execPrefix)
		if id, ends := strings.CutSuffix(rest, execSuffix); is && ends && runtime.ValidateID(id) == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// CheckRecords fails with a *recordfile.NewerError if a newer program wrote one of the records in
// the state directory. This program must then stop: it would misunderstand them. CheckRecords
// changes nothing, and runs before Adopt.
func (s *Service) CheckRecords(ctx context.Context) error {
	if e, ok := s.cfg.Engine.(runtime.RecordChecker); ok {
		if err := e.CheckRecords(ctx); recordfile.Newer(err) != nil {
			return err
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.cfg.StateDir, "c"))
	if err != nil {
		return nil // Adopt handles the error
	}
	for _, entry := range entries {
		dir := s.dirOf(entry.Name())
		names := []string{recordName, wantedName}
		ids, _ := execRecords(dir)
		for _, id := range ids {
			names = append(names, execPrefix+id+execSuffix)
		}
		for _, name := range names {
			if err := recordfile.CheckFile(filepath.Join(dir, name), recordVersion); recordfile.Newer(err) != nil {
				return fmt.Errorf("container %s: %w", entry.Name(), err)
			}
		}
	}
	return nil
}
