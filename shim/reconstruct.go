package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/internal/rawfd"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// errNeverRan means that a container without a readable record never had a process.
var errNeverRan = errors.New("container never had a process")

// sandboxAnnotation holds a container's pod in its OCI configuration, as containerd sets it.
const sandboxAnnotation = "io.kubernetes.cri.sandbox-id"

// reconstruct rebuilds a record that could not be read because of cause. What was requested is in
// wanted.json, or at least in the first part of the record. The engine and the keeper know the
// process. The damaged file is kept aside. errNeverRan: there is nothing to lose.
func (s *Service) reconstruct(ctx context.Context, id string, cause error) (rec record, err error) {
	if transient.Is(cause) || recordfile.Newer(cause) != nil {
		return rec, cause
	}
	rec, noFile, err := s.remembered(id)
	if err != nil {
		return rec, err
	}
	held, err := s.hold.get("c/" + id)
	if err != nil {
		return rec, err
	}
	defer held.close()
	known, status, err := s.askEngine(ctx, &rec)
	if err != nil {
		return rec, err
	}
	if known.never && held["pid"] == nil || noFile && known.nothing && len(held) == 0 {
		return rec, errNeverRan
	}
	if err := findProcess(&rec, known.process, held["pid"]); err != nil {
		return rec, err
	}
	if rec.Process == nil {
		return rec, fmt.Errorf("%w; neither the engine nor the keeper knows its process", cause)
	}
	switch {
	case rec.Process.Exit != nil:
		rec.Phase = phaseExited
	case status == specs.StateCreated:
		rec.Phase = phaseCreated
	default:
		rec.Phase = phaseRunning // also if it has ended: the caller soon finds that out
	}
	if rec.PodID == "" {
		rec.PodID = podOf(&rec)
	}
	s.guessStdio(&rec, held)
	s.log.Error("container's record was unreadable and is rebuilt", "container", id, "err", cause,
		"pid", rec.Process.PID, "phase", rec.Phase)
	if err := replaceBad(filepath.Join(s.dirOf(id), recordName), rec, true); err != nil {
		s.log.Error("cannot write the record", "container", id, "err", err)
	}
	return rec, nil
}

// findProcess completes a record's process with the one that the engine knows, or the keeper's.
func findProcess(rec *record, engine *processRecord, keeper *os.File) (err error) {
	if engine != nil && (rec.Process == nil || *rec.Process != *engine && rec.Process.Exit == nil) {
		rec.Process = engine
	}
	if rec.Process == nil {
		rec.Process, err = processOf(keeper)
	}
	return err
}

// remembered returns what the files of a container say, without its record. noFile: there are none.
func (s *Service) remembered(id string) (rec record, noFile bool, err error) {
	dir := s.dirOf(id)
	rec, err = readRecordFile(dir, wantedName)
	if transient.Is(err) || recordfile.Newer(err) != nil {
		return rec, false, err
	}
	wanted := err == nil
	data, err := recordfile.Read(filepath.Join(dir, recordName))
	if transient.Is(err) {
		return rec, false, err
	}
	salvage(data, &rec)
	if rec.Version > recordVersion {
		return rec, false, &recordfile.NewerError{Path: filepath.Join(dir, recordName), Found: rec.Version, Known: recordVersion}
	}
	rec.Version, rec.ID, rec.Phase = recordVersion, id, ""
	return rec, !wanted && errors.Is(err, os.ErrNotExist), nil
}

// salvage reads the intact start of a damaged record: all fields before the damage.
func salvage(data []byte, rec *record) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return
	}
	for dec.More() {
		t, err := dec.Token()
		name, is := t.(string)
		var value json.RawMessage
		if err != nil || !is || dec.Decode(&value) != nil {
			return
		}
		with := *rec
		if json.Unmarshal(fmt.Appendf(nil, "{%q:%s}", name, value), &with) == nil {
			*rec = with
		}
	}
}

// engineKnows is what the engine knows about a container whose record is lost.
type engineKnows struct {
	process *processRecord
	nothing bool // the engine has no container with that id
	never   bool // the engine has a container whose creation did not finish
}

func (s *Service) askEngine(ctx context.Context, rec *record) (k engineKnows, status specs.ContainerState, err error) {
	c, err := s.cfg.Engine.Load(ctx, rec.ID)
	switch {
	case transient.Is(err), recordfile.Newer(err) != nil, ctx.Err() != nil:
		return k, "", errors.Join(err, ctx.Err())
	case errors.Is(err, runtime.ErrNotFound):
		k.nothing = true
		return k, "", nil
	case err != nil:
		return k, "", nil // the engine's record is damaged too
	}
	if st, err := c.State(ctx); err == nil {
		status = st.Status
		rec.Bundle = st.Bundle
		if pod := st.Annotations[sandboxAnnotation]; rec.PodID == "" {
			rec.PodID = pod
		}
	}
	if rec.Cgroups == nil {
		rec.Cgroups = cgroupsOf(c)
	}
	if r, ok := c.(runtime.Recorded); ok {
		pid, start := r.Init()
		if pid != 0 {
			k.process = &processRecord{PID: pid, StartTime: start}
		}
		k.never = pid == 0
	}
	return k, status, nil
}

// processOf returns the process of a pidfd; nil if it has ended, because its pid then means
// nothing.
func processOf(f *os.File) (*processRecord, error) {
	if f == nil {
		return nil, nil
	}
	var info []byte
	var err error
	rawfd.With(f, func(fd int) { info, err = os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd)) })
	if err != nil {
		return nil, fmt.Errorf("find process of pidfd: %w", err)
	}
	for line := range strings.Lines(string(info)) {
		var pid int
		if n, _ := fmt.Sscanf(line, "Pid: %d", &pid); n != 1 || pid <= 0 { // -1: reaped
			continue
		}
		start, err := pidfd.StartTime(pid)
		if transient.Is(err) {
			return nil, err
		}
		if err != nil {
			return nil, nil
		}
		return &processRecord{PID: pid, StartTime: start}, nil
	}
	return nil, nil
}

// podOf reads the pod from the bundle.
func podOf(rec *record) string {
	if rec.Bundle == "" {
		return ""
	}
	spec, err := runtime.LoadSpec(rec.Bundle)
	if err != nil {
		return ""
	}
	return spec.Annotations[sandboxAnnotation]
}

// guessStdio derives from a container's files how its streams are kept, if nothing else says so.
func (s *Service) guessStdio(rec *record, held named) {
	is := func(name string) bool {
		var st unix.Stat_t
		return unix.Lstat(filepath.Join(s.dirOf(rec.ID), name), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
	}
	if !rec.Log && is(stdoutName) {
		rec.Log = true
		rec.Terminal = !is(stderrName)
		rec.Stdin = rec.Terminal || is(stdinName)
	}
	if rec.Log && rec.LogPath == "" && held["log"] != nil {
		rawfd.With(held["log"], func(fd int) {
			if path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
				rec.LogPath = strings.TrimSuffix(path, " (deleted)")
			}
		})
	}
}

// replaceBad keeps an unreadable record aside and writes another, if any, in its place.
func replaceBad(path string, rec any, write bool) error {
	if err := unix.Rename(path, path+badSuffix); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("keep %s aside: %w", path, err)
	}
	if !write {
		return nil
	}
	return writeRecord(path, rec, nil)
}
