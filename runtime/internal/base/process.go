package base

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/coracle-project/coracle/internal/kernfile"
)

// Process is a process and when it began: the kernel gives a pid to another
// process later, but never with the same start.
type Process struct {
	Pid int `json:"pid"`
	// Start is in clock ticks since boot: field 22 of /proc/<pid>/stat.
	Start uint64 `json:"start"`
}

// Identify reads who has pid now.
func Identify(pid int) (Process, error) {
	_, start, err := ProcStat(pid)
	return Process{Pid: pid, Start: start}, err
}

// Alive says whether the process still runs. A zombie does not.
func (p Process) Alive() bool {
	if p.Pid <= 0 {
		return false
	}
	state, start, err := ProcStat(p.Pid)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// ProcStat reads fields 3 (state) and 22 (start time) of /proc/<pid>/stat,
// proc_pid_stat(5). The command name, field 2, may hold spaces and parentheses,
// so fields are counted from its last ")".
func ProcStat(pid int) (state byte, start uint64, err error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	data, err := kernfile.Read(path)
	if err != nil {
		return 0, 0, err
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const first = 3 // of the fields after the name
	const stateField, startField = 0, 22 - first
	if len(fields) <= startField {
		return 0, 0, fmt.Errorf("read %s: only %d fields after the name", path, len(fields))
	}
	start, err = strconv.ParseUint(string(fields[startField]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("read %s: %w", path, err)
	}
	return fields[stateField][0], start, nil
}
