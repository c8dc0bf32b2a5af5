package client_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// The lock of the state directory ends with the shim: containers, execs, the keeper and the starter
// do not inherit it.
func TestLockEndsWithTheShim(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	r.exec(req.ID, "sleep 1000 </dev/null >/dev/null 2>&1 &")
	node := filepath.Join(r.dir, "node")
	old := r.shimPID()
	if pid, _, ok := shim.LockHolder(node); !ok || pid != old {
		t.Errorf("holder %d, %v; want the shim, %d", pid, ok, old)
	}
	locks := []string{node, filepath.Join(node, shim.LockName)}
	for _, path := range locks {
		if err := tryLock(path); err != unix.EWOULDBLOCK {
			t.Errorf("lock of %s while the shim runs: %v", path, err)
		}
	}
	// Stop the keeper, so that nothing replaces the shim before the test has checked the lock.
	keeper := r.keeperPID()
	r.sendSignal(keeper, unix.SIGSTOP)
	process, err := pidfd.Open(old)
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	r.sendSignal(old, unix.SIGKILL)
	if err := pidfd.Ended(r.ctx(), process); err != nil { // including all its threads
		t.Fatal(err)
	}
	for _, path := range locks {
		if err := tryLock(path); err != nil {
			t.Errorf("lock of %s after the shim's death: %v", path, err)
		}
	}
	r.sendSignal(keeper, unix.SIGCONT)
	r.waitNewShim(old)
	if _, err := r.c.Status(r.ctx(), pod, req.ID); err != nil {
		t.Error(err)
	}
	if pid, _, ok := shim.LockHolder(node); !ok || pid != r.shimPID() {
		t.Errorf("holder %d, %v; want the next shim, %d", pid, ok, r.shimPID())
	}
}

func tryLock(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}
