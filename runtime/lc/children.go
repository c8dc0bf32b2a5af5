package lc

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/base"
)

// Children are the processes that libcontainer starts for this program. It executes
// one, stage 0, which clones stage 1, which clones stage 2, the container's init or an
// exec; CLONE_PARENT makes all of them children of ours. When one of them dies half way,
// killed with its container, say, libcontainer 1.5 waits for stage 0 alone
// (initProcess.getChildPid and waitForChildExit, setnsProcess.execSetns): runc ends soon
// afterwards. A shim does not, and would keep the others as zombies; one that is in a
// container's PID namespace already would keep the container's init from ending, for
// that waits until all of the namespace are reaped (zap_pid_ns_processes).
//
// The pids of the others are known to no one then. So when a start has failed and none
// is under way, every child that has a stage's name, and is not one that a caller was
// given, is an orphan of that start. So a process needs one table for all its engines. The zero
// value is empty.
type Children struct {
	mu       sync.Mutex
	starting int            // starts under way
	failed   bool           // one has failed since the last sweep
	given    map[int]uint64 // when they began: those that are the callers' to reap
	checkAt  int            // how many given there are when it is time to forget some
}

// begin says that a start is under way, until done.
func (t *Children) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting++
}

// done says what became of it: child is whom the caller is given, zero if the start has
// failed and is undone.
func (t *Children) done(child base.Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting--
	if child.Pid > 0 {
		if t.given == nil {
			t.given = map[int]uint64{}
		}
		t.given[child.Pid] = child.Start
		t.forgetLocked()
	} else {
		t.failed = true
	}
	if t.failed && t.starting == 0 {
		t.failed = false
		t.reapOrphansLocked()
	}
}

// forgetLocked drops those that have been reaped, each time there are twice as many.
func (t *Children) forgetLocked() {
	if len(t.given) < max(t.checkAt, 64) {
		return
	}
	for pid, began := range t.given {
		if _, start, err := base.ProcStat(pid); err != nil || start != began {
			delete(t.given, pid)
		}
	}
	t.checkAt = 2 * len(t.given)
}

// orphanTimeout bounds the wait for an orphan that is killed.
const orphanTimeout = time.Second

// reapOrphansLocked kills and reaps the orphans of failed starts.
func (t *Children) reapOrphansLocked() {
	paths, _ := filepath.Glob("/proc/[1-9]*/stat") // the pattern is valid
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil || !isStage(stat, os.Getpid()) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if _, began, err := base.ProcStat(pid); err != nil || t.given[pid] == began {
			continue
		}
		reapOrphan(pid)
	}
}

// isStage says whether a process is a child of parent with the name that libcontainer
// gives to its stages until they execute a program.
func isStage(stat []byte, parent int) bool {
	end := bytes.LastIndexByte(stat, ')')
	_, name, found := bytes.Cut(stat[:max(end, 0)], []byte("("))
	if !found || !bytes.HasPrefix(name, []byte("runc:[")) {
		return false
	}
	fields := bytes.Fields(stat[end+1:]) // state, then the parent
	return len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent)
}

func reapOrphan(pid int) {
	ctx, cancel := context.WithTimeout(context.Background(), orphanTimeout)
	defer cancel()
	fds := base.OpenPidfds([]int{pid})
	for _, fd := range fds {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // a zombie takes no signal
	}
	_ = base.AwaitExits(ctx, fds) // what cannot die yet is met again after the next failure
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	var status unix.WaitStatus
	_, _ = unix.Wait4(pid, &status, unix.WNOHANG|unix.WALL, nil)
}
