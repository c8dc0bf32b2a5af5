package lc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/coracle-project/coracle/internal/kernfile"
)

// orphans are our child processes in the cgroup of a container whose creation failed. CRIU makes a
// restored container's processes children of its caller, in that cgroup. When it fails, it kills
// them and we have to reap them: an unreaped one in the pod's PID namespace would keep that
// namespace's init from ending (see children). Only the unified hierarchy tells a zombie's cgroup.
// Without one, orphans are not found.
func (c *container) orphans() []int {
	own := inUnified(c.Rec.CgroupPaths[""])
	if own == "" {
		return nil
	}
	var out []int
	paths, _ := filepath.Glob("/proc/[1-9]*/cgroup") // the pattern is valid
	for _, path := range paths {
		text, err := kernfile.Read(path)
		if err != nil || !isIn(text, own) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && parentOf(pid) == os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

// inUnified is a cgroup's path in the unified hierarchy, which may be mounted next to those of
// version 1; "" for none.
func inUnified(dir string) string {
	inner, found := strings.CutPrefix(dir, "/sys/fs/cgroup/unified/")
	if !found {
		inner, found = strings.CutPrefix(dir, "/sys/fs/cgroup/")
	}
	if !found || inner == "" {
		return ""
	}
	return "/" + inner
}

// isIn says whether a process with this /proc/pid/cgroup is in a cgroup of the unified hierarchy,
// be it a removed one.
func isIn(text []byte, cgroup string) bool {
	for line := range bytes.Lines(text) {
		if path, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("0::")); ok {
			return string(bytes.TrimSuffix(path, []byte(" (deleted)"))) == cgroup
		}
	}
	return false
}

// parentOf is a process's parent, 0 if it is gone.
func parentOf(pid int) int {
	stat, err := kernfile.Read(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	var state string
	var parent int
	if _, err := fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &parent); err != nil {
		return 0
	}
	return parent
}

// reapOrphans reaps them once Remove has killed them. Init is the caller's.
func (c *container) reapOrphans(pids []int) {
	for _, pid := range pids {
		if pid != c.Rec.Init.Pid {
			reapOrphan(pid)
		}
	}
}
