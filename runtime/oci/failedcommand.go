package oci

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/kernfile"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// leftGrace is how long a failed command's process, which ends with it, is waited for.
const leftGrace = time.Second

// reapLeft reaps what a command that failed to start a process leaves behind (crun does): a child
// in the container's PID namespace that has not become the program. It would be found as an orphan
// later, but neither the namespace nor the container can end while it is a zombie.
func (k *command) reapLeft() {
	name := cutName(k.path)
	_, own := nameAndDepth("/proc/self/status")
	var left []base.Process
	var pids []int
	for _, p := range children() {
		if p.Start < k.self.Start || k.self.Pid == 0 {
			continue
		}
		comm, depth := nameAndDepth(fmt.Sprintf("/proc/%d/status", p.Pid))
		if strings.HasPrefix(comm, name) && depth > own {
			left, pids = append(left, p), append(pids, p.Pid)
		}
	}
	fds := base.OpenPidfds(pids)
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), leftGrace)
	defer cancel()
	_ = base.AwaitExits(ctx, fds) // one that goes on is another command's
	for _, p := range left {
		// Another command's child has become its program meanwhile, which its caller waits for.
		if comm, _ := nameAndDepth(fmt.Sprintf("/proc/%d/status", p.Pid)); strings.HasPrefix(comm, name) {
			reap(p)
		}
	}
}

// cutName is what the kernel calls a program: at most 15 characters (proc_pid_comm(5)).
func cutName(path string) string {
	name := filepath.Base(path)
	return name[:min(len(name), 15)]
}

// nameAndDepth reads a process's name and in how many PID namespaces it is; "" and 0 if it is gone.
func nameAndDepth(status string) (name string, depth int) {
	b, err := kernfile.Read(status)
	if err != nil {
		return "", 0
	}
	for line := range strings.Lines(string(b)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "Name":
			name = strings.TrimSpace(value)
		case "NSpid":
			depth = len(strings.Fields(value))
		}
	}
	return name, depth
}
