package signals

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

const helperVar = "CORACLE_TEST_SIGNALS"

func TestMain(m *testing.M) {
	if os.Getenv(helperVar) != "" {
		helper()
	}
	os.Exit(m.Run())
}

// helper sends itself signals and ends with 0 if all of them, and only they, came.
func helper() {
	fd, err := Take()
	if err != nil {
		panic(err)
	}
	if again, err := Take(); err != nil || again != fd {
		panic("taken twice, to different descriptors")
	}
	for s := unix.Signal(1); s <= 64; s++ {
		if !mayTake(s) {
			continue
		}
		if err := unix.Kill(os.Getpid(), s); err != nil {
			panic(err)
		}
		if got := read(fd); got != s {
			panic(got)
		}
	}
	// A child has none of these handlers.
	cmd := exec.Command("/bin/sh", "-c", "kill -TERM $$")
	if err := cmd.Run(); err == nil || cmd.ProcessState.String() != "signal: terminated" {
		panic(cmd.ProcessState.String())
	}
	if s := read(fd); s != unix.SIGCHLD {
		panic(s)
	}
	os.Exit(0)
}

func read(fd int) unix.Signal {
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
			panic(err)
		}
		var b [1]byte
		if n, err := unix.Read(fd, b[:]); n == 1 {
			return unix.Signal(b[0])
		} else if err != unix.EAGAIN && err != unix.EINTR {
			panic(err)
		}
	}
}

func TestTake(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVar+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestRuntimesSignalsAreLeftAlone(t *testing.T) {
	for _, s := range []unix.Signal{unix.SIGSEGV, unix.SIGURG, unix.SIGKILL} {
		if mayTake(s) {
			t.Errorf("%v would be taken", s)
		}
	}
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGCHLD, unix.SIGWINCH, unix.SIGUSR1, 35, 64} {
		if !mayTake(s) {
			t.Errorf("%v would not be taken", s)
		}
	}
}
