package client_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// lockedBuffer is a buffer that one goroutine fills and another looks at.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// waitFor looks at a condition that has no event of its own until it holds.
func (r *rig) waitFor(what string, holds func() bool) {
	r.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("%s did not happen\n%s", what, r.shimLog())
		}
	}
}

// waitLog waits until the log's stdout contains text.
func (r *rig) waitLog(path, text string) {
	r.Helper()
	r.waitFor("log of "+strings.TrimSpace(text), func() bool {
		_, err := os.Stat(path)
		return err == nil && strings.Contains(r.log(path, "stdout"), text)
	})
}

// waitNewShim waits until the keeper has replaced the shim old.
func (r *rig) waitNewShim(old int) {
	r.Helper()
	r.waitFor("new shim", func() bool { pid := r.shimPID(); return pid != 0 && pid != old })
}

func (r *rig) waitGone(pid int) {
	r.Helper()
	r.waitFor("end of a process", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
}

// badBundle is a bundle whose program does not exist.
func (r *rig) badBundle() string {
	req := r.request("true")
	spec := runtimetest.Spec(req.ID, "/no/such/program")
	spec.Linux.CgroupsPath = cgroupParent + "/" + req.ID
	r.writeSpec(req.Bundle, spec)
	return req.Bundle
}
