package lc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// process is a process and when it began: the kernel gives a pid to another
// process later, but never with the same start.
type process struct {
	Pid int `json:"pid"`
	// Start is in clock ticks since boot: field 22 of /proc/<pid>/stat.
	Start uint64 `json:"start"`
}

// identify reads who has pid now.
func identify(pid int) (process, error) {
	_, start, err := procStat(pid)
	return process{Pid: pid, Start: start}, err
}

// alive says whether the process still runs. A zombie does not.
func (p process) alive() bool {
	if p.Pid <= 0 {
		return false
	}
	state, start, err := procStat(p.Pid)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// procStat reads fields 3 (state) and 22 (start time) of /proc/<pid>/stat,
// proc_pid_stat(5). The command name, field 2, may hold spaces and parentheses,
// so fields are counted from its last ")".
func procStat(pid int) (state byte, start uint64, err error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	data, err := os.ReadFile(path)
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
