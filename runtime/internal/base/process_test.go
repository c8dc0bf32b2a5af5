package base

import (
	"errors"
	"math"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

func TestProcessIdentity(t *testing.T) {
	self, err := Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !self.Alive() {
		t.Error("this process counts as dead")
	}
	// The same pid with another start is another process.
	other := Process{Pid: self.Pid, Start: self.Start + 1}
	if other.Alive() {
		t.Error("a process that got our pid later counts as ours")
	}
	if err := other.Signal(unix.SIGKILL); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("signal to a reused pid: %v", err)
	}
	for _, p := range []Process{{}, {Pid: -1}, {Pid: math.MaxInt32}} {
		if p.Alive() {
			t.Errorf("%+v counts as alive", p)
		}
		if err := p.Signal(unix.SIGTERM); !errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("signal %+v: %v", p, err)
		}
	}
}
